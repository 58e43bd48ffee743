"""Small models of other programs: their state dicts, and their forward passes written out in NumPy.

Nothing here uses a module of Polyrec. The loops follow the sources (facebookresearch/dlrm
`interact_features`, torchrec `InteractionArch`, `LowRankCrossNet`), one row at a time, in float64.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyrec.models.schema.batch import F64, I64

State = dict[str, Tensor]

SPARSE = "sparse_arch.embedding_bag_collection.embedding_bags"


@dataclass(frozen=True)
class Shape:
    """rows: of each table, one table a feature. bottom, top: hidden widths."""

    dense: int
    rows: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """ids: for each feature, for each row, a list of ids."""

    dense: F64
    ids: list[list[list[int]]]

    def bags(self) -> dict[str, tuple[I64, I64]]:
        """Returns the inputs in the format of the inference protocol."""
        return {
            f"c{i}": (
                np.array([one for row in rows for one in row], np.int64),
                np.array([len(row) for row in rows], np.int64),
            )
            for i, rows in enumerate(self.ids)
        }

    def sparse(self) -> I64:
        """int64 [rows, features], where every list has one id."""
        return np.array([[row[0] for row in rows] for rows in self.ids], np.int64).T


def random_shape(random: np.random.Generator) -> Shape:
    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in random.integers(1, 12, random.integers(low, high)))

    return Shape(int(random.integers(1, 6)), some(1, 6), int(random.integers(1, 9)), some(0, 3), some(0, 3))


def random_request(
    random: np.random.Generator, features: Sequence[int], dense: int, rows: int, single: bool
) -> Request:
    """features: rows of the table of each."""
    ids = [
        [random.integers(0, n, 1 if single else random.integers(0, 5)).tolist() for _ in range(rows)]
        for n in features
    ]
    return Request(random.standard_normal((rows, dense)), ids)


def dlrm_state(
    random: np.random.Generator, shape: Shape, interaction: str = "dot", itself: bool = False
) -> State:
    """The state dict of facebookresearch/dlrm's DLRM_Net."""
    vectors = len(shape.rows) + 1
    joined = {
        "dot": shape.width + vectors * (vectors - 1) // 2 + (vectors if itself else 0),
        "cat": vectors * shape.width,
    }[interaction]
    state = {f"emb_l.{i}.weight": normal(random, n, shape.width) for i, n in enumerate(shape.rows)}
    for stem, widths in (
        ("bot_l", (shape.dense, *shape.bottom, shape.width)),
        ("top_l", (joined, *shape.top, 1)),
    ):
        for i in range(len(widths) - 1):
            state[f"{stem}.{2 * i}.weight"] = normal(random, widths[i + 1], widths[i])
            state[f"{stem}.{2 * i}.bias"] = normal(random, widths[i + 1])
    return state


def dlrm_forward(state: State, request: Request, interaction: str = "dot", itself: bool = False) -> F64:
    """Probabilities as facebookresearch/dlrm computes them."""
    weights = {name: t.double().numpy() for name, t in state.items()}
    out = []
    for r, dense in enumerate(request.dense):
        x = _mlp(weights, "bot_l.{}", dense, step=2)
        vectors = [x] + [_dlrm_vector(weights, i, rows[r]) for i, rows in enumerate(request.ids)]
        if interaction == "cat":
            z = np.concatenate(vectors)
        else:
            offset = 1 if itself else 0
            products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i + offset)]
            z = np.concatenate((x, products))
        out.append(_mlp(weights, "top_l.{}", z, step=2, last_relu=False)[0])
    return _sigmoid(np.array(out))


def _dlrm_vector(weights: dict[str, F64], table: int, ids: list[int]) -> F64:
    """A pooled vector: with the learned weight of each row, and with the projection of a mixed dimension."""
    name = f"emb_l.{table}"
    rows = weights[f"{name}.embs.weight"] if f"{name}.embs.weight" in weights else weights[f"{name}.weight"]
    learned = weights.get(f"v_W_l.{table}", np.ones(len(rows)))
    pooled = sum((learned[one] * rows[one] for one in ids), np.zeros(rows.shape[1]))
    projection = weights.get(f"{name}.proj.weight")
    return pooled if projection is None else projection @ pooled


def torchrec_state(
    random: np.random.Generator,
    shape: Shape,
    features: Sequence[int],
    cross: tuple[int, int] | None = None,
    widths: Sequence[int] = (),
) -> State:
    """The state dict of TorchRec's DLRM, or with `cross` (layers, rank) of its DLRM_DCN.

    features: the table of each. widths: of each table, if they differ from the bottom MLP's.
    """
    vectors = len(features) + 1
    of = dict(enumerate(widths or [shape.width] * len(shape.rows)))
    joined = (
        shape.width + sum(of[t] for t in features) if cross else shape.width + vectors * (vectors - 1) // 2
    )
    state = {f"{SPARSE}.t_{i}.weight": normal(random, n, of[i]) for i, n in enumerate(shape.rows)}
    for stem, widths in (
        ("dense_arch.model._mlp.{}._linear", (shape.dense, *shape.bottom, shape.width)),
        ("over_arch.model.0._mlp.{}._linear", (joined, 3, *shape.top)),
    ):
        for i in range(len(widths) - 1):
            state[f"{stem.format(i)}.weight"] = normal(random, widths[i + 1], widths[i])
            state[f"{stem.format(i)}.bias"] = normal(random, widths[i + 1])
    state["over_arch.model.1.weight"] = normal(random, 1, (3, *shape.top)[-1])
    state["over_arch.model.1.bias"] = normal(random, 1)
    layers, rank = cross or (0, 0)
    for i in range(layers):
        state[f"inter_arch.crossnet.W_kernels.{i}"] = normal(random, joined, rank)
        state[f"inter_arch.crossnet.V_kernels.{i}"] = normal(random, rank, joined)
        state[f"inter_arch.crossnet.bias.{i}"] = normal(random, joined)
    return state


def torchrec_forward(
    state: State, request: Request, features: Sequence[int], means: Collection[int] = ()
) -> F64:
    """Probabilities: the sigmoid of the logits that TorchRec's DLRM or DLRM_DCN computes.

    means: tables pooled by mean.
    """
    weights = {name: t.double().numpy() for name, t in state.items()}
    layers = sum(name.startswith("inter_arch.crossnet.V_kernels.") for name in weights)
    out = []
    for r, dense in enumerate(request.dense):
        x = _mlp(weights, "dense_arch.model._mlp.{}._linear", dense)
        vectors = [x]
        for table, rows in zip(features, request.ids, strict=True):
            stored = weights[f"{SPARSE}.t_{table}.weight"]
            pooled = sum((stored[one] for one in rows[r]), np.zeros(stored.shape[1]))
            vectors.append(pooled / max(len(rows[r]), 1) if table in means else pooled)
        if layers:
            x0 = z = np.concatenate(vectors)
            for n in range(layers):
                v, w, b = (
                    weights[f"inter_arch.crossnet.{k}.{n}"] for k in ("V_kernels", "W_kernels", "bias")
                )
                z = x0 * (w @ (v @ z) + b) + z
        else:
            n = len(vectors)
            z = np.concatenate((x, [vectors[i] @ vectors[j] for i in range(n) for j in range(i + 1, n)]))
        z = _mlp(weights, "over_arch.model.0._mlp.{}._linear", z)
        out.append((weights["over_arch.model.1.weight"] @ z + weights["over_arch.model.1.bias"])[0])
    return _sigmoid(np.array(out))


def quantized(
    state: State, table: int, bits: int, split: bool = False, padded: bool = True
) -> tuple[State, State]:
    """The state dict with a table as TorchRec's quantized collection has it, and with the decoded table.

    Rows of fbgemm: fp16 scale, fp16 bias, then numbers of 8 bits, or of 4 with the lower half of a byte
    first, and zeros up to a multiple of 16 bytes. split: scale and bias in tensors of their own.
    """
    name = f"{SPARSE}.t_{table}"
    rows = state[f"{name}.weight"].double().numpy()
    packed, decoded = [], []
    for row in rows:
        bias = np.float16(row.min())
        scale = np.float16((row.max() - row.min()) / (2**bits - 1) or 1)
        q = np.clip(np.rint((row - float(bias)) / float(scale)), 0, 2**bits - 1).astype(np.uint8)
        decoded.append(q.astype(np.float64) * float(scale) + float(bias))
        if bits == 4:
            q = np.append(q, np.zeros(q.size % 2, np.uint8))
            q = q[0::2] | (q[1::2] << 4)
        whole = np.concatenate((np.array([scale, bias]).view(np.uint8), q))
        packed.append(np.append(whole, np.zeros(-whole.size % 16 if padded and not split else 0, np.uint8)))
    stored = torch.from_numpy(np.stack(packed))
    new = state | {f"{name}.weight": stored}
    if split:
        halves = stored[:, :4].contiguous().view(torch.float16)
        new |= {
            f"{name}.weight": stored[:, 4:].contiguous(),
            f"{name}.weight_qscale": halves[:, :1].clone(),
            f"{name}.weight_qbias": halves[:, 1:].clone(),
        }
    return new, state | {f"{name}.weight": torch.from_numpy(np.stack(decoded))}


def _mlp(weights: dict[str, F64], name: str, x: F64, step: int = 1, last_relu: bool = True) -> F64:
    n = 0
    while f"{name.format(n)}.weight" in weights:
        x = weights[f"{name.format(n)}.weight"] @ x + weights[f"{name.format(n)}.bias"]
        n += step
        if last_relu or f"{name.format(n)}.weight" in weights:
            x = np.maximum(x, 0)
    return x


def _sigmoid(x: F64) -> F64:
    return np.exp(-np.logaddexp(0, -x))


def normal(random: np.random.Generator, *size: int) -> Tensor:
    return torch.from_numpy((random.standard_normal(size) * 0.5).astype(np.float32))
