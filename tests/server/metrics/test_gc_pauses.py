from __future__ import annotations

import gc

from polyrec.server.metrics.gc_pauses import GcTimer
from polyrec.server.metrics.metrics import Metrics


def test_every_collection_is_reported_inside_the_context() -> None:
    reported: list[tuple[int, float]] = []
    before = list(gc.callbacks)
    gc.disable()
    try:
        with GcTimer(lambda generation, took_s: reported.append((generation, took_s))):
            for generation in (0, 2, 1):
                gc.collect(generation)
        gc.collect()
    finally:
        gc.enable()
    assert [generation for generation, _ in reported] == [0, 2, 1]
    assert all(took_s > 0 for _, took_s in reported)
    assert gc.callbacks == before


def test_collections_are_counted_by_generation() -> None:
    metrics = Metrics()
    metrics.collected(1, 0.004)
    metrics.collected(2, 0.03)
    lines = metrics.render().decode().splitlines()
    assert 'polyrec_gc_pause_seconds_count{generation="0"} 0' in lines
    assert 'polyrec_gc_pause_seconds_bucket{generation="1",le="0.005"} 1' in lines
    assert 'polyrec_gc_pause_seconds_sum{generation="2"} 0.03' in lines
