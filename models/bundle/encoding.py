"""Builds the encoder that a bundle describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from polyrec.models.bundle.manifest import Manifest
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import vocabularies_from_tensors


def encoder_of(manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> Encoder:
    """Returns the encoder of a bundle. arrays: of its vocabulary file. Raises DataError."""
    standards = {n: Standard(s.mean, s.deviation) for n, s in manifest.standards.items()}
    return Encoder(manifest.schema_, vocabularies_from_tensors(arrays, manifest.vocabularies), standards)
