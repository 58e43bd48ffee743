from __future__ import annotations

from polyrec.planner.deployment.sweep import Axis, SweepPoint
from polyrec.report.chart import png
from polyrec.report.plan import sweep


def test_a_picture_is_a_png_with_and_without_prices_and_gaps() -> None:
    axes = [Axis("slo", (5, 10, 100)), Axis("memory.cpu", (1e8, 1e9))]
    points = [
        SweepPoint(
            {"slo": slo, "memory.cpu": m},
            rows_per_s=1000 * slo,
            information_per_s=900 * slo,
            served=0.5,
            quality=0.9,
            shares={"a": 1.0},
            cost_per_million=None if m < 1e9 else 0.1,
        )
        for slo in axes[0].values
        for m in axes[1].values
    ]
    points[0] = SweepPoint(points[0].values, reason="no")
    assert png(sweep.draw(points, axes)).startswith(b"\x89PNG")
    alone = [SweepPoint({"cores": n}, 10.0 * n, 9.0 * n, 1.0, 0.9, {"a": 1.0}) for n in (1, 2, 3)]
    assert png(sweep.draw(alone, [Axis("cores", (1, 2, 3))])).startswith(b"\x89PNG")
