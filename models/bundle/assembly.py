"""Builds a bundle's embedding stage and dense net from its tensors, whole or at a nested width.

At width w, the stage reads the first w columns of the same rows and the net is the head of that width, so the
result is an ordinary model of width w. Rows are views of the mapped file, so that all widths of a bundle
share its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from polyrec.models.bundle.manifest import Manifest
from polyrec.models.dlrm.dlrm import HEADS, Architecture, Net, dense_slots, initial_net
from polyrec.models.dlrm.representation import RankedVocabulary, narrowed, stage_from_tensors
from polyrec.models.embeddings.stage import Stage
from polyrec.models.errors import BundleError

T = TypeVar("T")


def checked_width(manifest: Manifest, width: int | None, named: object) -> int | None:
    """Returns the width if the bundle `named` has it (None: all widths). Raises BundleError."""
    widths = manifest.architecture.widths
    if width is None or width in widths:
        return width
    if not widths:
        raise BundleError(f"bundle '{named}' has one width, {manifest.architecture.width}, and none nested")
    raise BundleError(f"bundle '{named}' has no width {width}; it has {', '.join(map(str, widths))}")


def shape_at(manifest: Manifest, width: int | None) -> Architecture:
    """Returns the shape of the dense net that serves at a width; None: the widest."""
    shape = manifest.architecture
    return shape.head(width or shape.width) if shape.widths else shape


def rows_at(manifest: Manifest, rows: Mapping[str, Tensor], width: int | None) -> Mapping[str, Tensor]:
    """Returns the embedding stage's tensors at a width; None: all columns."""
    if width in (None, manifest.architecture.width):
        return rows
    assert width is not None
    return narrowed(manifest.representation, rows, width)


def head_at(manifest: Manifest, tensors: Mapping[str, T], width: int | None) -> Mapping[str, T]:
    """Returns the tensors (or other values by name) of the dense net that serves at a width; None: the
    widest.
    """
    shape = manifest.architecture
    if not shape.widths:
        return tensors
    prefix = f"{HEADS}.{width or shape.width}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def activations_at(manifest: Manifest, width: int | None) -> Mapping[str, float]:
    """Returns the largest inputs, by layer, of the dense net that serves at a width; empty if unknown."""
    seen = manifest.activations
    return {} if seen is None else head_at(manifest, seen.largest, width)


def build_stage(
    manifest: Manifest,
    vocabularies: Mapping[str, RankedVocabulary],
    rows: Mapping[str, Tensor],
    width: int | None,
) -> Stage:
    """Builds the embedding stage at a width, without copying rows."""
    tensors = rows_at(manifest, rows, width)
    return stage_from_tensors(manifest.representation, manifest.schema_, vocabularies, tensors)


def build_net(shape: Architecture, manifest: Manifest, stage: Stage, tensors: Mapping[str, Tensor]) -> Net:
    """Builds a dense net in evaluation mode. Raises RuntimeError if the tensors have other shapes."""

    def net() -> Net:
        return initial_net(shape, dense_slots(manifest.schema_), stage.slots)

    with torch.device("meta"):
        # allocate no memory before the manifest's shapes are known to match the file
        net().load_state_dict(tensors, assign=True)
    built = net()
    built.load_state_dict(tensors)
    return built.eval()
