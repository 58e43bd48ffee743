"""Opens a bundle's weights without its encoder, for processes that only execute batches.

It does not verify checksums, as the process that loaded the bundle has done so, and does not read vocabulary
values. Opening a bundle that another process has open is fast, because the mapped rows are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.bundle.assembly import (
    activations_at,
    build_net,
    build_stage,
    checked_width,
    head_at,
    shape_at,
)
from polyrec.models.bundle.bundle import map_tensors
from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.bundle.manifest import EMBEDDINGS, MANIFEST, NET, VOCABULARY, Manifest, read_manifest
from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.embeddings.stage import Stage
from polyrec.models.errors import BundleError


@dataclass(frozen=True, slots=True)
class StoredRanks:
    """The part of a vocabulary that a stage needs. stored: [rows], the rank of each id."""

    stored: Tensor

    @property
    def rows(self) -> int:
        return self.stored.shape[0]

    @property
    def rank_of_id(self) -> NDArray[np.signedinteger[Any]]:
        found: NDArray[np.signedinteger[Any]] = self.stored.numpy()
        return found


@dataclass(frozen=True)
class BundleWeights:
    """The stage and the dense net of a bundle. width: see polyrec.models.bundle.bundle.Bundle."""

    files: HeldFiles
    manifest: Manifest
    ranks: dict[str, StoredRanks]
    rows: Mapping[str, Tensor]
    width: int | None = None

    def at_width(self, width: int | None) -> BundleWeights:
        """Returns the weights at another width. Raises BundleError if there is no such width."""
        return replace(self, width=checked_width(self.manifest, width, self.files.folder))

    @property
    def activations(self) -> Mapping[str, float]:
        """The largest inputs of the layers of `net()`, by name; empty if unknown."""
        return activations_at(self.manifest, self.width)

    def stage(self) -> Stage:
        """Builds a new embedding stage over the mapped rows."""
        return build_stage(self.manifest, self.ranks, self.rows, self.width)

    def net(self) -> DenseNet:
        """Builds a new dense net in evaluation mode."""
        tensors = head_at(self.manifest, map_tensors(self.files, NET), self.width)
        shape = shape_at(self.manifest, self.width)
        return build_net(shape, self.manifest, self.stage(), tensors).heads[-1]


def open_weights(files: HeldFiles, version: str) -> BundleWeights:
    """Opens the weights of a bundle that was verified when it was loaded as this version.

    Raises BundleError if its files have been overwritten since.
    """
    manifest = read_manifest(files.folder, files.path(MANIFEST))
    if manifest.version != version:
        raise BundleError(
            f"bundle '{files.folder}' was overwritten: "
            f"it has version {manifest.version}, {version} is served; reload it"
        )
    stored = map_tensors(files, VOCABULARY)
    ranks = {t: StoredRanks(stored[f"{t}.rank_of_id"]) for t in manifest.vocabularies}
    return BundleWeights(files, manifest, ranks, map_tensors(files, EMBEDDINGS))
