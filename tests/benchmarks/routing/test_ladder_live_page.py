from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.paired import ratio
from benchmarks.routing.ladder_live_page import compared, main


def runs(**information: float | None) -> dict[str, dict[str, Any]]:
    """Makes one turn's figures by policy: everything in time, half of the rows on each of two paths."""
    return {
        policy.replace("_", ":"): {
            "information": found,
            "ok": 1.0,
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
    told = compared(turns, chosen="static:b", widest="b")
    assert told["best"] == "static:a"
    assert told["over_best"] == ratio([10.0, 20.0], [9.0, 16.0])
    assert told["over_chosen"] == told["over_widest"] == ratio([10.0, 20.0], [2.0, 18.0])
    assert told["mprec_over_best"] == ratio([5.0, 10.0], [9.0, 16.0])
    assert told["information"]["static:b"] == 10.0
    assert told["mix"] == {"a": 0.5, "b": 0.5}


def test_a_run_without_an_answer_in_time_has_a_finite_ratio() -> None:
    turns = [runs(priced=1.0, mprec=None, static_a=0.0)] * 2
    assert math.isfinite(compared(turns, "static:a", "a")["over_best"][0])


def test_the_page_says_at_which_loads_the_router_falls_short(tmp_path: Path) -> None:
    file = tmp_path / "ladder-live.json"
    paths = [
        {"name": name, "quality": quality, "few_us": 1.0, "many_us": 2.0, "capacity": 3.0}
        for name, quality in (("a", 0.1), ("b", 0.2))
    ]
    low = {"load": "0.05", "rate": 10.0, "seconds": 2.0, "chosen": "static:b", "peak": 0.1}
    day = {"load": "day", "rate": 20.0, "seconds": 8.0, "chosen": "static:a", "peak": 3.0}
    turns = [
        {"load": load, "turn": turn, "runs": runs(priced=priced, mprec=1.0, static_a=1.0, static_b=1.0)}
        for turn in range(3)
        for load, priced in (("0.05", 0.9), ("day", 2.0))
    ]
    found = {"data": "ml1m", "machine": "a machine", "made": "2026-01-02T03:04", "slo_ms": 10.0}
    found |= {"front_us": 100.0, "paths": paths, "loads": {"0.05": low, "day": day}, "turns": turns}
    file.write_text(json.dumps(found))
    assert main([str(file), "--out", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "at least 0.99 times the best static path in hindsight, at load: 5%\n" in page
    assert "at least 1.5 times always the best path, at load: 5%\n" in page
    assert "| day | 20 | 3 | a | 2.000 [2.000, 2.000] | 2.000 [2.000, 2.000] (a) |" in page
