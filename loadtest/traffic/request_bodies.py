"""Builds request bodies from values or ids.

    columns of raw values -> predict_body, rank_body        JSON
    arrays of stable ids  -> plain_tensors, ranking_tensors -> infer_body   JSON or binary tensors

It depends only on numpy (orjson is used if installed) and on no HTTP library, so the file can be copied into
a client. docs/protocol.md describes the formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

Array = NDArray[Any]
Ids = Array | tuple[Array, Array]
"""[rows] numbers or ids of one feature; of a multi-valued one (ids of all rows, how many each row has)."""

PREDICT, RANK, INFER = "/v1/predict", "/v1/rank", "/v2/models/dlrm/infer"
HEADER_BYTES = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of features in the order of the tensors."""

    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    bags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a schema: all of them, and by role."""

    plain: Layout
    context: Layout
    candidate: Layout

    @staticmethod
    def from_schema(schema: Mapping[str, Any]) -> Features:
        """Creates it from a schema file as parsed from YAML or JSON, with lists `dense` and `categorical`."""

        def layout(*roles: str) -> Layout:
            dense, categorical = (
                [f for f in schema.get(part) or () if f.get("role", "candidate") in roles]
                for part in ("dense", "categorical")
            )
            return Layout(
                tuple(f["name"] for f in dense),
                tuple(f["name"] for f in categorical if not f.get("pooling")),
                tuple(f["name"] for f in categorical if f.get("pooling")),
            )

        return Features(layout("context", "candidate"), layout("context"), layout("candidate"))


def predict_body(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Builds a body of /v1/predict. columns: feature -> one value per row (None if missing), or lists."""
    return _dumps({"columns": columns})


def rank_body(
    context: Mapping[str, Any], candidates: Mapping[str, Sequence[Any]], top_k: int | None = None
) -> bytes:
    """Builds a body of /v1/rank. context: feature -> value. candidates: feature -> one value per
    candidate.
    """
    document: dict[str, Any] = {"context": context, "candidates": candidates}
    if top_k is not None:
        document["top_k"] = top_k
    return _dumps(document)


def plain_tensors(features: Features, ids: Mapping[str, Ids]) -> dict[str, Array]:
    """Builds the tensors of the plain form. ids: numbers or ids of every feature, one per row."""
    return _tensors("", features.plain, ids)


def ranking_tensors(
    features: Features,
    context: Mapping[str, Ids],
    candidates: Mapping[str, Ids],
    context_lengths: Sequence[int] | Array | None = None,
) -> dict[str, Array]:
    """Builds the tensors of a ranking, with each context once.

    context: one entry per context. candidates: one per candidate, those of the first context first.
    context_lengths: number of candidates per context; not needed for a single context.
    """
    tensors = _tensors("context.", features.context, context)
    tensors |= _tensors("candidate.", features.candidate, candidates)
    if context_lengths is not None:
        tensors["context_lengths"] = np.asarray(context_lengths, np.int64)
    return tensors


def _tensors(prefix: str, layout: Layout, ids: Mapping[str, Ids]) -> dict[str, Array]:
    absent = [name for name in (*layout.dense, *layout.sparse, *layout.bags) if name not in ids]
    if absent:
        raise ValueError(f"feature '{absent[0]}' has no values")
    tensors: dict[str, Array] = {}
    if layout.dense:
        tensors[f"{prefix}dense"] = np.column_stack([ids[name] for name in layout.dense]).astype("<f4")
    if layout.sparse:
        tensors[f"{prefix}sparse"] = np.column_stack([ids[name] for name in layout.sparse]).astype("<i8")
    for name in layout.bags:
        values, lengths = ids[name]
        tensors[f"{name}.values"] = np.asarray(values).astype("<i8")
        tensors[f"{name}.lengths"] = np.asarray(lengths).astype("<i8")
    return tensors


def infer_body(
    tensors: Mapping[str, Array], *, binary: bool = True, timeout_us: int | None = None
) -> tuple[bytes, dict[str, str]]:
    """Builds body and headers of /v2/.../infer. tensors: float32 or int64. binary: for tensors and answer."""
    inputs: list[dict[str, Any]] = []
    for name, array in tensors.items():
        datatype = "FP32" if array.dtype.kind == "f" else "INT64"
        inputs.append({"name": name, "datatype": datatype, "shape": list(array.shape)})
        if binary:
            inputs[-1]["parameters"] = {"binary_data_size": array.nbytes}
        else:
            inputs[-1]["data"] = array.ravel().tolist()
    document: dict[str, Any] = {"inputs": inputs}
    if timeout_us is not None:
        document["parameters"] = {"timeout": timeout_us}
    if not binary:
        return _dumps(document), {}
    document["parameters"] = {**document.get("parameters", {}), "binary_data_output": True}
    head = _dumps(document)
    return b"".join([head, *(a.tobytes() for a in tensors.values())]), {HEADER_BYTES: str(len(head))}


def _dumps(document: Any) -> bytes:
    if orjson is None:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    return orjson.dumps(document)
