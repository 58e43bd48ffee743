"""Metrics of tiers; of updates: read while updates hold their lock, and over changes of version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.tiers.tiered_table import TieredTable
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.update import StoredTableUpdate, StoredUpdate, UpdateNotKept
from polyrec.server.metrics.instruments import Registry
from polyrec.server.metrics.tier_metrics import TierMetrics, UpdateMetrics


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Changes]]:
    """Updates of two versions."""
    versions = [Changes(tmp_path), Changes(tmp_path)]
    yield versions
    for changes in versions:
        changes.close()


def test_a_tier_that_holds_no_rows_is_not_shown(tmp_path: Path) -> None:
    """On a CPU every lookup would miss the device's tier, which is no cache that fails."""
    registry = Registry()
    metrics = TierMetrics(registry)
    rows = np.zeros((20_000, 64), np.float32)
    with TieredTable(rows, 300_000, tmp_path, np.arange(20_000)) as table:
        metrics.set_sources([table.figures])
        table.gather(np.arange(300))
        metrics.refresh()
    shown = registry.text()
    assert 'polyrec_embedding_lookups_total{tier="host"} 300' in shown
    assert 'tier="disk"' in shown
    assert 'tier="device"' not in shown
    assert 'tier="remote"' not in shown


def update(changes: Changes, times: int) -> None:
    rows = StoredTableUpdate(np.arange(2), np.zeros((2, 8), np.uint8))
    for _ in range(times):
        changes.apply(StoredUpdate({"t": rows}))


def test_a_scrape_does_not_wait_for_an_update(two: list[Changes]) -> None:
    registry = Registry()
    metrics = UpdateMetrics(registry)
    metrics.set_changes({"p": two[0]})
    update(two[0], 3)
    with two[0].held:
        scrape = threading.Thread(target=metrics.refresh, daemon=True)
        scrape.start()
        scrape.join(20.0)
        assert not scrape.is_alive()
    assert 'polyrec_updates_total{path="p"} 3' in registry.text()


def test_updates_that_cannot_be_kept_are_counted(two: list[Changes], monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    metrics = UpdateMetrics(registry)
    metrics.set_changes({"p": two[0]})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(two[0]._file, "make_room", full)
        for _ in range(2):
            with pytest.raises(UpdateNotKept, match="No space left"):
                update(two[0], 1)
    update(two[0], 1)
    metrics.refresh()
    assert 'polyrec_updates_failed_total{path="p"} 2' in registry.text()
    assert 'polyrec_updates_total{path="p"} 1' in registry.text()


def test_each_update_is_counted_once_over_reloads_and_rollbacks(two: list[Changes]) -> None:
    registry = Registry()
    metrics = UpdateMetrics(registry)
    first, second = two
    metrics.set_changes({"p": first, "q": first})
    update(first, 5)
    metrics.set_changes({"p": second})
    update(second, 7)
    metrics.refresh()
    assert 'polyrec_updates_total{path="p"} 12' in registry.text()
    metrics.set_changes({"p": first})
    update(first, 1)
    metrics.refresh()
    assert 'polyrec_updates_total{path="p"} 13' in registry.text()
    assert 'polyrec_update_rows_total{path="p"} 26' in registry.text()


def test_a_version_without_updates_has_no_age(two: list[Changes]) -> None:
    registry = Registry()
    metrics = UpdateMetrics(registry)
    metrics.set_changes({"p": two[0]})
    update(two[0], 1)
    metrics.set_changes({"p": two[1]})
    metrics.refresh()
    assert "polyrec_update_age_seconds{" not in registry.text()
    assert 'polyrec_updated_rows{path="p"} 0' in registry.text()
