from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lanes import hop
from polyrec.models.bundle.bundle import Bundle

KINDS = ("inline", "thread, own core", "process, own core", "bare, own core")


@pytest.mark.long
def test_every_kind_is_measured_at_every_size_and_reported(
    bundle: Bundle, clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop, "LANES", {name: hop.LANES[name] for name in KINDS})
    monkeypatch.setattr(hop, "ROWS", (1, 5))
    monkeypatch.setattr(hop, "PAUSES_S", {"busy": 0.0, "idle 2 ms": 0.002})
    found = hop.measure(bundle, clicks, "torch", rounds=2)
    assert {(h.lane, h.rows, h.load) for h in found} == {
        (name, rows, load) for name in KINDS for rows in (1, 5) for load in ("busy", "idle 2 ms")
    }
    for h in found:
        assert h.batches == 2 * (hop.COUNTS[h.load] - hop.WARM)
        assert 0 < h.p50_us <= h.p99_us
        assert h.executed_us > 0
    assert len(hop.table(found).splitlines()) == 1 + len(found)
