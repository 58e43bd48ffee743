"""Keeps trained bundles, so that an interrupted comparison of models can be resumed."""

from __future__ import annotations

import sys
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.errors import BundleError
from polyrec.models.training.pipeline import Learner


def kept(path: Path) -> Bundle | None:
    """Returns the bundle at `path`; None if there is none."""
    try:
        return load_bundle(path)
    except BundleError:
        return None


def trained(path: Path, learner: Learner) -> Bundle:
    """Returns the bundle at `path` if this learner's recipe made it from the same data, else trains it."""
    found, training = kept(path), learner.training
    if found is not None:
        manifest, made = found.manifest, found.manifest.training
        if (
            made.get("recipe") == training.recipe.model_dump(mode="json")
            and made.get("data", {}).get("fingerprint") == learner.reader.fingerprint()
            and manifest.architecture == training.architecture
            and manifest.representation == training.representation(learner.kind, found.encoder.vocabularies)
        ):
            return found
    print(f"training {path.name}", file=sys.stderr)
    return learner.learn(path, replace=True)
