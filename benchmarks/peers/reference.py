"""Computes reference probabilities for benchmarks/peers, in a slow but simple way, in float64 with numpy.

Independent of the measured encoder, runtimes and graphs: takes rows by id, layers by name, and the
interaction's pairs one by one, as `interact_features` of facebookresearch/dlrm does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.batch import F32, F64, I64


class Reference:
    """The reference of one bundle whose features are all single-valued, with dot interaction."""

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self._weights = {name: t.double().numpy() for name, t in bundle.net().state_dict().items()}
        self._rows = bundle.rows["store.weight"].numpy()
        self._ranks = [bundle.encoder.vocabularies[t].rank_of_id for t in manifest.schema_.tables]
        self._base = np.cumsum([0, *(len(ranks) for ranks in self._ranks[:-1])])

    def __call__(self, dense: F32, sparse: I64) -> F64:
        """Returns probabilities, float64 [rows]. dense: [rows, features]; sparse: ids [rows, features]."""
        tables = zip(self._ranks, self._base, sparse.T, strict=True)
        vectors = np.stack([self._rows[base + ranks[ids]] for ranks, base, ids in tables], axis=1)
        bottom = self._layers("bottom", dense.astype(np.float64))
        x = np.concatenate((bottom[:, None], vectors.astype(np.float64)), axis=1)
        hidden = self._layers("top", self._dot(x))
        logit = hidden @ self._weights["output.weight"].T + self._weights["output.bias"]
        return 1 / (1 + np.exp(-logit[:, 0]))  # type: ignore[no-any-return]

    def _layers(self, part: str, x: F64) -> F64:
        """Applies an MLP with a ReLU after every layer."""
        for name in _weights_of(part, self._weights):
            x = np.maximum(x @ self._weights[name].T + self._weights[name.replace("weight", "bias")], 0)
        return x

    def _dot(self, x: F64) -> F64:
        pairs = [(x[:, i] * x[:, j]).sum(axis=1) for i in range(x.shape[1]) for j in range(i)]
        return np.column_stack([x[:, 0], *pairs])


def _weights_of(part: str, weights: Mapping[str, NDArray[Any]]) -> Sequence[str]:
    """Returns the names of consecutive layers' weights: `top.0.weight`, `top.2.weight`."""
    found = [name for name in weights if name.startswith(f"{part}.") and name.endswith(".weight")]
    return sorted(found, key=lambda name: int(name.split(".")[-2]))
