from __future__ import annotations

import xml.etree.ElementTree as ET
from math import isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.report.load.chart import Chart, Limit, Series, label, ticks
from polyrec.report.load.png import save_png
from polyrec.report.load.svg import HEIGHT, WIDTH, legend, svg

VALUES = st.lists(st.one_of(st.floats(0, 1e6), st.just(float("nan"))), min_size=1, max_size=30)


def chart(*ys: list[float], **more: object) -> Chart:
    n = max(map(len, ys), default=0)
    series = [
        Series(f"s{i} <&>", np.arange(n, dtype=float), np.array(y + [np.nan] * (n - len(y))), i)
        for i, y in enumerate(ys)
    ]
    return Chart("title", "says <so>", "x", "y", tuple(series), **more)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    made = ticks(low, low + span)
    assert 1 <= len(made) <= 8
    assert all(low - 1e-6 * span <= t <= low + span * (1 + 1e-6) for t in made)


@given(st.floats(1e-3, 1e3), st.floats(1.5, 1e6))
def test_ticks_of_a_log_axis_are_ones_twos_and_fives(low: float, times: float) -> None:
    for tick in ticks(low, low * times, log=True):
        assert low <= tick <= low * times
        assert f"{tick:e}"[0] in "125"


def test_labels_tell_neighbours_apart() -> None:
    assert [label(v, percent=True, step=0.0001) for v in (0.9601, 0.9602)] == ["96.01%", "96.02%"]
    assert [label(v) for v in (0, 0.5, 2500, 20_000)] == ["0", "0.5", "2500", "20k"]


def test_values_that_differ_by_rounding_only_are_one_line_in_the_middle() -> None:
    nearly = [0.9521187854521188, 0.9521187854521187]
    low, high = chart(nearly, y_low=None).y_range
    assert high - low > 0.01
    assert (low + high) / 2 == pytest.approx(nearly[0])
    low, high = chart([0.96010, 0.96015], y_low=None).y_range
    assert high - low == pytest.approx(6e-5)


@given(VALUES, VALUES, st.booleans(), st.sampled_from(["lines", "layers"]))
def test_whatever_the_values_the_picture_is_well_formed_and_inside_its_frame(
    a: list[float], b: list[float], log: bool, kind: str
) -> None:
    made = chart(a, b, log=log, kind=kind, limit=Limit(10.0, "budget"), marks=((0.0, "now"),))
    root = ET.fromstring(svg(made))
    for element in root.iter("path"):
        numbers = element.get("d", "").replace("M", " ").replace("L", " ").replace("Z", " ").replace("h", " ")
        for pair in numbers.replace("V", " ").replace("H", " ").split():
            assert isfinite(float(pair))
            assert -1 <= float(pair) <= max(WIDTH, HEIGHT) + 1
    assert "&lt;so&gt;" in svg(made)
    assert legend(made).count("<li>") == 2


def test_gaps_in_a_line_stay_gaps() -> None:
    nan = float("nan")
    root = ET.fromstring(svg(chart([1.0, 2.0, nan, 3.0, 4.0, nan, 5.0])))
    (line,) = [p for p in root.iter("path") if p.get("class") == "line"]
    assert line.get("d", "").count("M") == 3


def test_a_chart_of_nothing_can_be_drawn() -> None:
    assert ET.fromstring(svg(chart())) is not None


def test_the_same_charts_make_a_picture(tmp_path: object) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "charts.png"
    save_png([chart([1.0, 2.0], limit=Limit(1.5, "l")), chart([1.0], [2.0], kind="layers")], file, "two")
    assert file.read_bytes().startswith(b"\x89PNG")
