"""The ladder of widths: what is compared, and facts that hold at any speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.routing.ladder import ML1M, ROWS, best_static, gain, main, ml1m, run


def test_the_ladder_is_the_measured_one() -> None:
    ladder = ml1m()
    for path, (few_us, many_us, quality) in zip(ladder.paths, ML1M.values(), strict=True):
        assert 1e6 * path.latency.median(ROWS) == pytest.approx(few_us)
        assert 1e6 * path.latency.median(256) == pytest.approx(many_us)
        assert path.quality == quality
    capacity = [ladder.capacity(path) for path in ladder.paths]
    assert capacity == sorted(capacity, reverse=True)
    assert [ladder.chosen_for(queries_s) for queries_s in (0.0, capacity[2], 1e9)] == [
        "static:w64@cpu",
        "static:w16@cpu",
        "static:w4@cpu",
    ]
    with_front = ml1m(front_s=50e-6)
    assert 1 / with_front.capacity(with_front.paths[0]) == pytest.approx(1 / capacity[0] + 50e-6)


@pytest.mark.long
def test_no_policy_exceeds_the_bound_and_the_best_static_is_one() -> None:
    found = run(ml1m(), peaks=(3.0,), loads=(0.02, 0.1), seconds=0.5, queries=500)
    for one in (*found["days"], *found["loads"]):
        assert one["chosen"] in one["runs"]
        own = best_static([one])
        for policy, figures in one["runs"].items():
            assert figures["information_s"] <= 1.01 * one["bound_s"]
            assert 0 <= figures["in_time"] <= 1
            if policy.startswith("static:"):
                assert figures["information_s"] <= one["runs"][own]["information_s"]
                assert set(figures["mix"]) == {policy.removeprefix("static:")}
    quiet, busy = found["loads"]
    assert best_static([quiet]) == "static:w64@cpu"
    assert set(quiet["runs"]["priced"]["mix"]) == {"w64@cpu"}
    assert gain(busy, "static:w64@cpu") > 0.2
    assert gain(found["days"][0], "static:w64@cpu") > 0.2


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--peak", "0.8", "--load", "0.02", "--seconds", "0.5", "--queries", "200"]
    main(["--out", str(tmp_path), *small])
    page = (tmp_path / "ladder.md").read_text()
    assert page == capsys.readouterr().out.rstrip() + "\n"
    assert "\n## Constant loads\n" in page
    found = json.loads((tmp_path / "ladder.json").read_text())
    assert [p["name"] for p in found["paths"]] == [f"{name}@cpu" for name in ML1M]
    assert len(found["days"]) == len(found["loads"]) == 1
