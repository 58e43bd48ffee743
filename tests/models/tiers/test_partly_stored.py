"""Tiers of a representation that stores the hottest rows of each table and computes the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.precision import Precision
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import ComputedStage, Encoding
from polyrec.models.runtimes import open_runtime
from polyrec.models.tiers.layout import REMOTE
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.tiers.updates.update import TableUpdate, UpdateError, apply_update
from tests.models.random_batches import random_batch
from tests.models.tiers.redis_server import RedisServer


def partly_stored(bundle: Bundle, folder: Path, precision: Precision = "fp32") -> Bundle:
    """A bundle of random weights that stores 40 items and all users, and computes the rest."""
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    cuts = {"item": 40, "user_id": vocabularies["user_id"].rows}
    select = Representation(kind="select", encoding=Encoding(k=16, hidden=(8,)), cuts=cuts)
    stage = initial_stage(select, schema, vocabularies, 8, 1, spread=0.5)
    net = DenseNet(Architecture(width=8, bottom=(8,), top=(8,)), dense_slots(schema), stage.slots)
    found = write_bundle(folder / "fp32", DLRM(stage, net), select, bundle.encoder, {}, {})
    if precision == "fp32":
        return found
    model, representation = quantize_bundle(found, precision)
    return write_bundle(folder / precision, model, representation, bundle.encoder, {}, {})


def in_memory(bundle: Bundle) -> TierStack:
    return open_tiers(bundle, TierSettings())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_rows_in_a_store_are_named_by_their_ids_and_replaced_by_the_computed_row_of_unknown_values(
    precision: Precision, server: RedisServer, bundle: Bundle, tmp_path: Path
) -> None:
    select = partly_stored(bundle, tmp_path, precision)
    items = select.encoder.vocabularies["item"]
    assert items.oov_rank >= 40
    remote = {"url": server.url, "fill": True, "timeout_ms": 5000}
    cuts = {"item": {"host": 10, "remote": 30}}
    stack = open_tiers(select, TierSettings.model_validate({"cuts": cuts, "remote": remote}))
    assert stack.tiers.remote is not None
    stored = set(np.flatnonzero((items.rank_of_id >= 10) & (items.rank_of_id < 40)).tolist())
    assert {int(key.rpartition(b":")[2]) for key in server.send("KEYS", "*")} == stored
    over, flat = open_runtime("torch", select, tiers=stack), open_runtime("torch", select)
    table_rows = {t: v.rows for t, v in select.encoder.vocabularies.items()}
    batch = random_batch(np.random.default_rng(0), select.manifest.schema_, table_rows, 40)
    np.testing.assert_allclose(over.predict(batch), flat.predict(batch), rtol=0, atol=1e-6)
    server.send("FLUSHALL")
    stage = select.stage()
    assert isinstance(stage, ComputedStage)
    unknown = stage.vectors(np.array([stage.rows.base["item"] + items.oov_rank])).detach()
    away = torch.from_numpy(stack.tiers.layout.rows_of(REMOTE)[:3])
    got = TieredRows(stack).gather(away)
    np.testing.assert_allclose(got, unknown.expand(3, -1), atol=1e-6 if precision == "fp32" else 0.05)
    stack.close()


def test_only_stored_values_are_retracted_where_unknown_ones_have_a_stored_row(
    bundle: Bundle, tmp_path: Path
) -> None:
    select = partly_stored(bundle, tmp_path)
    stack = in_memory(select)
    rows = TieredRows(stack)
    everything = torch.arange(stack.tiers.layout.total)
    before = rows.gather(everything).clone()
    items = select.encoder.vocabularies["item"]
    computed = items.value_of_id(int(np.argmax(items.rank_of_id[: items.size] >= 40)))
    hot = items.value_of_id(int(np.argmax(items.rank_of_id[: items.size] < 40)))
    assert computed is not None
    assert hot is not None
    with pytest.raises(UpdateError, match="of table 'item' is computed, not stored"):
        apply_update(stack, {"item": TableUpdate.retraction([computed])})
    with pytest.raises(UpdateError, match="table 'item' computes the row of unknown values"):
        apply_update(stack, {"item": TableUpdate.retraction([hot])})
    assert torch.equal(rows.gather(everything), before)
    assert apply_update(stack, {"user_id": TableUpdate.retraction(["u1"])}).retracted == 1
    stack.close()
