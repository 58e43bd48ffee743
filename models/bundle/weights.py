"""Opens the weights of a bundle without its encoder, for processes that only execute batches.

Checksums are not verified, which the process that loaded the bundle has done, and vocabulary values are not
read. Opening a bundle that another process has open is fast, because its mapped rows are shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.bundle.bundle import map_tensors, net_from_tensors
from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.bundle.manifest import EMBEDDINGS, MANIFEST, NET, VOCABULARY, Manifest, read_manifest
from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.dlrm.representation import stage_from_tensors
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
    """The stage and the dense net of a bundle."""

    files: HeldFiles
    manifest: Manifest
    ranks: dict[str, StoredRanks]

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        return map_tensors(self.files, EMBEDDINGS)

    def stage(self) -> Stage:
        """A new embedding stage over the mapped rows."""
        m = self.manifest
        return stage_from_tensors(m.representation, m.schema_, self.ranks, self._rows)

    def net(self) -> DenseNet:
        """A new dense net, ready to evaluate."""
        return net_from_tensors(self.manifest, self.stage(), map_tensors(self.files, NET))


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
    return BundleWeights(
        files, manifest, {t: StoredRanks(stored[f"{t}.rank_of_id"]) for t in manifest.vocabularies}
    )
