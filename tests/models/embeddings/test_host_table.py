from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.host_table import HostTable
from polyrec.models.embeddings.store import QuantizedRows, quantize
from polyrec.models.embeddings.table import TableStage
from polyrec.models.schema.schema import Schema
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.random_batches import random_batch, random_schema, random_table_rows
from tests.models.tiers.test_rows import PRECISIONS, packed, random_cuts


def stage_of(random: np.random.Generator, bags: bool) -> tuple[Schema, dict[str, int], TableStage]:
    """Draws a schema with or without multi-valued features, its tables and a stage."""
    while True:
        schema = random_schema(random)
        if any(f.multi for f in schema.categorical) == bags:
            rows = random_table_rows(random, schema)
            return schema, rows, TableStage.initial(schema, rows, 8, seed=3)


@pytest.mark.parametrize("seed", range(8))
def test_vectors_are_those_of_the_stage(seed: int) -> None:
    random = np.random.default_rng(seed)
    schema, rows, stage = stage_of(random, bags=False)
    host = HostTable.from_stage(stage)
    assert host is not None
    for size, contexts in [(1, None), (23, None), (17, 2), (300, 1), (5, None)]:
        batch = random_batch(random, schema, rows, size, contexts)
        with torch.inference_mode():
            expected = [v.clone() for v in stage(batch)]
        for found, want in zip(host(batch), expected, strict=True):
            assert torch.equal(found, want)
        for array, want in zip(host.arrays(batch), expected, strict=True):
            assert np.array_equal(array, want.numpy())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [None, 4])
def test_vectors_of_tiered_rows_are_those_of_the_stage(
    precision: Precision, width: int | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    schema, rows, _ = stage_of(random, bags=False)
    row_format = RowFormat(8, precision)
    weight = packed(random, sum(rows.values()), 8, precision)
    cuts = random_cuts(random, rows)
    for own in cuts.values():
        own["host"] += own.pop("device")
    settings = TierSettings.model_validate({"cuts": cuts, "cache_bytes": 8 * 4096, "directory": tmp_path})
    stack = open_stack(rows_of_weight(weight, row_format, rows), settings)
    stage = TableStage.over(schema, rows, TieredRows(stack, width))
    host = HostTable.from_stage(stage)
    assert host is not None
    for size, contexts in [(1, None), (23, None), (17, 2), (300, 1)]:
        batch = random_batch(random, schema, rows, size, contexts)
        with torch.inference_mode():
            expected = [v.clone() for v in stage(batch)]
        for array, want in zip(host.arrays(batch), expected, strict=True):
            assert np.array_equal(array, want.numpy())
    stack.close()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cache_bytes", [4096, 8 * 4096])
def test_no_batch_mixes_rows_of_before_and_after_an_update(
    precision: Precision, cache_bytes: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(6)
    schema, rows, _ = stage_of(random, bags=False)
    row_format, total = RowFormat(8, precision), sum(rows.values())
    versions = [packed(random, total, 8, precision) for _ in range(4)]
    settings = TierSettings.model_validate(
        {
            "cuts": {table: {"host": n - n // 2, "disk": n // 2} for table, n in rows.items()},
            "cache_bytes": cache_bytes,
            "directory": tmp_path,
        }
    )
    stack = open_stack(rows_of_weight(versions[0], row_format, rows), settings)
    decoded = [row_format.decode(version).numpy() for version in versions]
    updated = threading.Event()

    def gather_and_check(lane: int) -> int:
        """Returns the number of batches of a lane until the updates are done; each is of one version."""
        own, batches = np.random.default_rng(lane), 0
        stage = TableStage.over(schema, rows, TieredRows(stack, (8, 4)[lane]))
        host = HostTable.from_stage(stage)
        assert host is not None
        hot = {table: n - n // 2 for table, n in rows.items()}
        while batches < 20 or not updated.is_set():
            batch = random_batch(own, schema, (hot, rows)[batches % 2], int(own.integers(1, 60)))
            arrays = host.arrays(batch)
            found = np.concatenate([array.reshape(-1, stage.width) for array in arrays])
            looked_up = stage.rows.lookups(batch).singles
            assert any(np.array_equal(found, rows_[looked_up, : stage.width]) for rows_ in decoded)
            batches += 1
        return batches

    with ThreadPoolExecutor(2) as lanes:
        checked = [lanes.submit(gather_and_check, lane) for lane in range(2)]
        try:
            for version in versions[1:]:
                stack.update(np.arange(total), version.view(torch.uint8).numpy())
                stack.settle(10.0)
        finally:
            updated.set()
        assert all(one.result() >= 20 for one in checked)
    stack.close()


def test_updated_rows_are_seen() -> None:
    random = np.random.default_rng(0)
    schema, rows, stage = stage_of(random, bags=False)
    host = HostTable.from_stage(stage)
    assert host is not None
    with torch.no_grad():
        stage.state_dict()["store.weight"].fill_(2.0)
    assert (host(random_batch(random, schema, rows, 4)).candidate == 2.0).all()


def test_other_rows_are_left_to_the_stage() -> None:
    schema, rows, stage = stage_of(np.random.default_rng(0), bags=False)
    weight = stage.state_dict()["store.weight"]
    assert HostTable.from_stage(TableStage(schema, rows, weight[:, :4])) is None
    stage.store = QuantizedRows(quantize(weight, "int8"), "int8")
    assert HostTable.from_stage(stage) is None
    *_, pooled = stage_of(np.random.default_rng(1), bags=True)
    assert HostTable.from_stage(pooled) is None
