from __future__ import annotations

import gc
import os
import threading
import zlib

import pytest

from polyrec.server.metrics.event_loop import GcTimer
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


def test_time_without_a_processor_is_counted() -> None:
    if not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel does not count waits")
    metrics, before = Metrics(), os.sched_getaffinity(0)
    done = threading.Event()

    def compute() -> None:
        data = bytes(1 << 16)
        while not done.is_set():
            zlib.crc32(data)  # without the interpreter's lock, which this thread would wait for instead

    os.sched_setaffinity(0, {min(before)})
    try:
        other = threading.Thread(target=compute)
        other.start()
        for _ in range(1000):
            zlib.crc32(bytes(1 << 16))
            if metrics.current_sample()["waited_s"] > 0:
                break
    finally:
        done.set()
        other.join()
        os.sched_setaffinity(0, before)
    assert metrics.current_sample()["waited_s"] > 0
    assert "polyrec_loop_waited_seconds_total 0\n" not in metrics.render().decode()
