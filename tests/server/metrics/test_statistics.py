from __future__ import annotations

from polyrec.server.metrics.statistics import Statistics


def test_counts_and_nanoseconds_add_up() -> None:
    statistics = Statistics()
    statistics.succeeded(3, total_s=1e-3, queue_s=1e-4, parse_s=2e-4, infer_s=3e-4, serialize_s=4e-4)
    statistics.succeeded(2, total_s=1e-3, queue_s=1e-4, parse_s=2e-4, infer_s=3e-4, serialize_s=4e-4)
    statistics.failed(5e-4)
    statistics.executed([5, 5], [3e-4, 3e-4])
    statistics.executed([1], [1e-4])
    reported = statistics.document("dlrm", "v1")
    assert (reported["inference_count"], reported["execution_count"]) == (5, 3)
    assert reported["last_inference"] > 0
    parts = reported["inference_stats"]
    assert {k: (v["count"], v["ns"] // 1000) for k, v in parts.items()} == {
        "success": (2, 2000),
        "fail": (1, 500),
        "queue": (2, 200),
        "compute_input": (2, 400),
        "compute_infer": (2, 600),
        "compute_output": (2, 800),
        "cache_hit": (0, 0),
        "cache_miss": (0, 0),
    }
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in reported["batch_stats"]] == [
        (1, 1),
        (5, 2),
    ]
