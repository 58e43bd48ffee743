"""Models of random numbers, of every representation, that every runtime executes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Schema

Runtimes = Callable[[str, DensePrecision], Runtime]

HASHED = Encoding(k=64, m=10_000, hidden=(32,))
MODELS: dict[str, tuple[Representation, dict[str, Any]]] = {
    "table dot": (Representation(), {"interaction": "dot", "itself": True}),
    "table cat": (Representation(), {"interaction": "cat"}),
    "table cross": (Representation(), {"interaction": "cross", "cross_rank": 512}),
    "dhe": (Representation(kind="dhe", encoding=HASHED), {"interaction": "cat"}),
    "small dhe": (
        Representation(kind="dhe", encoding=Encoding(k=10, m=100, hidden=(6,), transform="gaussian")),
        {"interaction": "dot"},
    ),
    "hybrid": (Representation(kind="hybrid", encoding=HASHED), {"interaction": "dot"}),
}


@pytest.fixture(scope="module")
def encoder(bundle: Bundle) -> Encoder:
    """The bundle's encoder with dense features as they are given, without logarithm and standardization."""
    dense = [{"name": d.name, "role": d.role} for d in bundle.manifest.schema_.dense]
    schema = Schema.model_validate(bundle.manifest.schema_.model_dump() | {"dense": dense, "request": ()})
    return Encoder(schema, bundle.encoder.vocabularies, {})


@pytest.fixture(scope="module", params=MODELS)
def made(
    request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """A model of random numbers."""
    representation, shape = MODELS[request.param]
    schema = encoder.schema
    stage = initial_stage(representation, schema, encoder.vocabularies, width=8, seed=2, spread=0.5)
    torch.manual_seed(2)
    architecture = Architecture(width=8, bottom=(64,), top=(512, 128), **shape)
    net = DenseNet(architecture, dense_slots(schema), stage.slots)
    with torch.no_grad():
        net.output.weight.mul_(0.1)  # logits around zero, where a probability follows them most
    out = tmp_path_factory.mktemp("made") / "bundle"
    return write_bundle(out, DLRM(stage, net), representation, encoder, {}, {})


@pytest.fixture(scope="module")
def runtimes(made: Bundle) -> Runtimes:
    """The model by each runtime in each precision."""
    return cache(lambda name, precision: open_runtime(name, made, precision=precision))
