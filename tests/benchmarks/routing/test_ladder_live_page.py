from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.paired import ratio
from benchmarks.routing.ladder import ROWS
from benchmarks.routing.ladder_live_page import arrived, bound, capacities, compared, main, verdict


def runs(**information: float | None) -> dict[str, dict[str, Any]]:
    """Makes one turn's figures by policy: everything in time, half of the rows on each of two paths."""
    return {
        policy.replace("_", ":"): {
            "information": found,
            "ok": 1.0,
            "late": 0.0,
            "refused": 0.0,
            "mix": {"a": 0.5, "b": 0.5},
        }
        for policy, found in information.items()
    }


def test_the_best_static_path_is_that_of_all_turns_and_ratios_are_of_the_same_turn() -> None:
    turns = [
        runs(priced=10.0, mprec=5.0, static_a=9.0, static_b=2.0),
        runs(priced=20.0, mprec=10.0, static_a=16.0, static_b=18.0),
    ]
    told = compared(
        turns, chosen="static:b", widest="b", most=dict.fromkeys(("priced", "static:a", "static:b"), 40.0)
    )
    assert told["best"] == "static:a"
    assert told["over_best"] == ratio([10.0, 20.0], [9.0, 16.0])
    assert told["over_chosen"] == told["over_widest"] == ratio([10.0, 20.0], [2.0, 18.0])
    assert told["mprec_over_best"] == ratio([5.0, 10.0], [9.0, 16.0])
    assert told["information"]["static:b"] == 10.0
    assert told["mix"] == {"a": 0.5, "b": 0.5}
    assert told["at_most"] == {"over_best": 40 / 12.5, "over_chosen": 4.0, "over_widest": 4.0}
    assert told["of_bound"] == 15 / 40


def test_turns_of_some_policies_count_for_the_ratios_of_these() -> None:
    turns = [runs(priced=10.0, mprec=5.0, static_a=9.0, static_b=2.0), runs(priced=20.0, static_b=90.0)]
    told = compared(
        turns, chosen="static:b", widest="b", most=dict.fromkeys(("priced", "static:a", "static:b"), 40.0)
    )
    assert (told["best"], told["turns"]) == ("static:a", 1)
    assert told["over_best"][0] == pytest.approx(10 / 9)
    assert told["over_chosen"] == ratio([10.0, 20.0], [2.0, 90.0])


def test_policies_that_were_not_run_have_no_ratio() -> None:
    told = compared(
        [runs(priced=10.0, static_a=9.0)] * 2,
        chosen="static:a",
        widest="b",
        most=dict.fromkeys(("priced", "static:a", "static:b"), 40.0),
    )
    assert told["over_best"] == ratio([10.0, 10.0], [9.0, 9.0])
    assert all(map(math.isnan, (*told["over_widest"], *told["mprec_over_best"])))
    assert math.isnan(told["at_most"]["over_widest"])


def test_from_eight_turns_on_runs_are_compared_at_equal_speed_of_the_core() -> None:
    random = np.random.default_rng(1)
    turns = []
    for _ in range(8):
        priced_us, static_us = random.uniform(8, 12, 2)
        turn = runs(priced=1000 / priced_us, mprec=1.0, static_a=990 / static_us)
        turn["priced"]["unit_us"], turn["static:a"]["unit_us"] = priced_us, static_us
        turn["mprec"]["unit_us"] = 10.0
        turns.append(turn)
    told = compared(turns, chosen="static:a", widest="a", most={"priced": 200.0})
    assert told["over_best"] == pytest.approx((100 / 99,) * 3)
    assert compared(turns[:7], "static:a", "a", {"priced": 200.0})["over_best"][2] > 1.02


def test_a_run_without_an_answer_in_time_has_a_finite_ratio() -> None:
    turns = [runs(priced=1.0, mprec=None, static_a=0.0)] * 2
    assert math.isfinite(compared(turns, "static:a", "a", {"priced": 1.0})["over_best"][0])


def test_the_bound_is_the_optimum_of_a_linear_program() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        paths = [{"quality": q, "capacity": c} for q, c in random.uniform((0.1, 500), (0.4, 5000), (4, 2))]
        rate, speed = random.uniform(100, 8000), random.uniform(0.8, 1.5)
        limits = [[1 / path["capacity"] for path in paths], [1.0] * len(paths)]
        best = linprog([-path["quality"] for path in paths], limits, [speed, rate])
        assert bound(paths, "1.5", rate, speed) == pytest.approx(-ROWS * best.fun, rel=1e-6)


def test_a_day_is_worth_no_more_than_its_mean_rate_all_day() -> None:
    paths = [{"quality": 0.3, "capacity": 1000.0}, {"quality": 0.2, "capacity": 3000.0}]
    even, day = (bound(paths, load, 1500.0, 1.0) for load in ("1.0", "day"))
    assert 0.5 * even < day < even
    assert bound(paths, "day", 200.0, 1.0) == pytest.approx(ROWS * 200 * 0.3)  # the best path all day


def test_a_path_has_the_capacity_that_its_static_policy_showed_at_equal_speed_of_the_core() -> None:
    schedule = {
        "load": "1.5",
        "rate": 150.0,
        "seconds": 2.0,
        "chosen": "static:a",
        "peak": 1.5,
        "warm_up_s": 3.0,
    }
    few = schedule | {"load": "0.5", "rate": 50.0}
    slow = {"ok": 0.6, "late": 0.1, "mix": {"a": 1.0}, "unit_us": 12.0}
    fast = slow | {"ok": 0.8, "unit_us": 8.0}
    idle = {"ok": 1.0, "late": 0.0, "mix": {"b": 1.0}, "unit_us": 10.0}
    found = {
        "paths": [{"name": "a", "capacity": 100.0}, {"name": "b", "capacity": 90.0}],
        "loads": {"0.5": few, "1.5": schedule},
        "turns": [
            {"load": "1.5", "turn": 3, "runs": {"static:a": slow}},
            {"load": "1.5", "turn": 4, "runs": {"static:a": fast}},
            {"load": "0.5", "turn": 0, "runs": {"static:a": idle, "static:b": idle}},
        ],
    }
    usual = (1 / 12 + 1 / 8 + 2 / 10) / 4
    executed = usual * (0.7 * 12 * arrived(schedule, 3) + 0.9 * 8 * arrived(schedule, 4)) / 2
    assert capacities(found) == pytest.approx({"a": executed, "b": 90.0})


def test_a_day_tells_the_capacity_with_which_so_much_of_it_is_executed() -> None:
    day = {"load": "day", "rate": 100.0, "seconds": 4.0, "chosen": "static:a", "peak": 1, "warm_up_s": 1.0}
    rate = arrived(day, 0)
    for capacity in (60.0, 120.0, 190.0):
        done = bound([{"quality": 1 / ROWS, "capacity": capacity}], "day", 100.0, 1.0)
        run = {"ok": done / rate, "late": 0.0, "mix": {"a": 1.0}}
        turns = [{"load": "day", "turn": 0, "runs": {"static:a": run}}]
        found = {"paths": [{"name": "a", "capacity": 5.0}], "loads": {"day": day}, "turns": turns}
        assert capacities(found)["a"] == pytest.approx(capacity, rel=0.01)


def test_unreachable_goals_are_distinguished_from_missed_ones() -> None:
    assert verdict((1.1, 1.06, 1.2), 1.05, 1.3) == "met"
    assert verdict((1.0, 1.0, 1.0), 1.05, 1.01) == "out of reach: at most 1.010"
    assert verdict((1.0, 0.9, 1.04), 1.05, 1.3) == "missed"
    assert verdict((1.0, 0.9, 1.2), 1.05, 1.3) == "not shown"
    assert verdict((1.0, math.nan, math.nan), 1.05, 1.3) == "not shown"


def test_the_page_says_at_which_loads_the_router_falls_short(tmp_path: Path) -> None:
    file = tmp_path / "ladder-live.json"
    paths = [
        {"name": name, "quality": quality, "few_us": 1.0, "many_us": 2.0, "capacity": 3.0}
        for name, quality in (("a", 0.1), ("b", 0.2))
    ]
    low = {"load": "0.05", "rate": 10.0, "seconds": 2.0, "chosen": "static:b", "peak": 0.1, "warm_up_s": 1.5}
    day = {"load": "day", "rate": 20.0, "seconds": 8.0, "chosen": "static:a", "peak": 3.0, "warm_up_s": 1.5}
    turns = [
        {"load": load, "turn": turn, "runs": runs(priced=priced, mprec=1.0, static_a=1.0, static_b=1.0)}
        for turn in range(3)
        for load, priced in (("0.05", 0.9), ("day", 2.0))
    ]
    found = {"data": "ml1m", "machine": "a machine", "made": "2026-01-02T03:04", "slo_ms": 10.0}
    found |= {"front_us": 100.0, "paths": paths, "loads": {"0.05": low, "day": day}, "turns": turns}
    file.write_text(json.dumps(found))
    main([str(file), "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert "| 5% | missed | missed | missed | " in page
    assert "| day | met | met | met | " in page
    assert "| day | 20 | 3 | a | 2.000 [2.000, 2.000] | 2.000 [2.000, 2.000] (a) |" in page
