"""The page of phases: columns of earlier figures where they are known, and the command under each result."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.phases_page import PHASES, page, table


def case(server: bool = True) -> dict[str, Any]:
    """Figures of one case: phases of 1 to 5 ms alone, and twice that in the server."""
    alone = {phase: float(i + 1) for i, phase in enumerate(PHASES)}
    inside = {
        "cpu_ms": 40.0,
        "phases_ms": {phase: 2 * ms for phase, ms in alone.items()},
        "beyond_ms": 10.0,
        "requests_per_s": 1234.5,
    }
    return {"phases_ms": alone, "sum_ms": 15.0, "server": {"1": inside, "16": inside} if server else {}}


def test_known_cases_have_the_columns_of_before_and_prototype() -> None:
    lines = table("23 rows", case(), earlier=True).splitlines()
    assert lines[0] == (
        "| 23 rows, ms | bd14473 | prototype | alone | in the server, 1 connection "
        "| in the server, 16 connections |"
    )
    assert "| dense | 0.36-0.51 | 0.25-0.33 | 4.000 | 8.000 | 8.000 |" in lines
    assert "| sum |  |  | 15.000 | 30.000 | 30.000 |" in lines
    assert "| beyond the phases |  |  |  | 10.000 | 10.000 |" in lines
    assert len({line.count("|") for line in lines}) == 1


def test_cases_without_earlier_figures_or_a_server_have_fewer_columns() -> None:
    lines = table("2048 rows", case(server=False), earlier=True).splitlines()
    assert lines[0] == "| 2048 rows, ms | alone |"
    assert lines[-1] == "| sum | 15.000 |"


def test_page_names_command_and_machine() -> None:
    result = {
        "cases": {"270 context": case()},
        "command": "python -m benchmarks.peers.phases --rows 270",
        "date": "2026-11-23",
        "turns": 3,
        "processor": "a processor",
    }
    text = page({"kaggle/onnx/int8": result})
    assert "## kaggle, int8 (onnx), 270 rows: one context with candidates" in text
    assert "bd14473 |" not in text
    assert "`python -m benchmarks.peers.phases --rows 270`, 2026-11-23, 3 turns; a processor." in text
