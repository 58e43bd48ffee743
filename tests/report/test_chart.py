from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image

from polyrec.report.chart import DARK, LIGHT, Chart, Limit, Series, Theme, draw, log_ticks, pictures, png

VALUES = st.lists(st.one_of(st.floats(0, 1e6), st.just(float("nan"))), min_size=1, max_size=30)


def chart(*ys: list[float], **more: Any) -> Chart:
    n = max(map(len, ys), default=0)
    series = [
        Series(f"s{i}", np.arange(n, dtype=float), np.array(y + [np.nan] * (n - len(y))), i)
        for i, y in enumerate(ys)
    ]
    return Chart("title", "caption", "x", "y", tuple(series), **more)


@given(st.floats(1e-3, 1e12), st.floats(1.05, 1e7))
def test_a_log_scale_has_a_readable_number_of_ticks_inside_it(low: float, span: float) -> None:
    found = log_ticks(low, low * span)
    assert found == sorted(found)
    assert all(low <= value <= low * span for value in found)
    assert len(found) <= 9
    if span > 2:
        assert len(found) >= 3


def test_values_that_differ_by_rounding_only_are_one_line_in_the_middle() -> None:
    nearly = [0.9521187854521188, 0.9521187854521187]
    low, high = chart(nearly, from_zero=False).y_range
    assert high - low > 0.01
    assert (low + high) / 2 == pytest.approx(nearly[0])
    low, high = chart([0.96010, 0.96015], from_zero=False).y_range
    assert high - low == pytest.approx(6e-5)


def test_a_limit_is_inside_the_y_axis() -> None:
    low, high = chart([1.0, 2.0], limit=Limit(5.0, "budget")).y_range
    assert low == 0
    assert high > 5
    low, high = chart([1.0, 2.0], limit=Limit(0.1, "budget"), log=True).y_range
    assert 0 < low < 0.1


@settings(max_examples=15, deadline=None)
@given(VALUES, VALUES, st.booleans(), st.sampled_from(["lines", "layers"]))
def test_all_values_of_a_chart_are_drawn_inside_its_axes(
    a: list[float], b: list[float], log: bool, kind: str
) -> None:
    log = log and kind == "lines"
    made = chart(a, b, log=log, kind=kind, limit=Limit(10.0, "budget"), marks=((0.0, "now"),))
    (axes,) = draw([made]).axes
    low, high = axes.get_ylim()
    assert np.isfinite([low, high]).all()
    values = np.array([v for y in (a, b) for v in y if np.isfinite(v) and (v > 0 or not log)])
    assert (values >= low * (1 - 1e-9)).all()
    assert (values <= high * (1 + 1e-9)).all()
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["s0", "s1", "budget"]


def test_gaps_in_a_line_stay_gaps() -> None:
    values = [1.0, 2.0, float("nan"), 3.0]
    (axes,) = draw([chart(values)]).axes
    assert axes.lines[0].get_ydata() == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_charts_are_drawn_on_the_page_of_their_theme(theme: Theme) -> None:
    shown = [chart([1.0, 2.0]), chart([1.0], [2.0], kind="layers"), chart()]
    pixels = image.imread(io.BytesIO(png(draw(shown, theme, "three"))), format="png")[..., :3]
    page = [int(theme.page[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert pixels[0, 0] == pytest.approx(page, abs=0.01)
    assert (np.abs(pixels - page).max(axis=2) > 0.2).mean() > 0.005


def test_a_picture_has_both_themes() -> None:
    (made,) = pictures([chart([1.0, 2.0])])
    assert made.light.startswith(b"\x89PNG")
    assert made.dark.startswith(b"\x89PNG")
    assert made.light != made.dark


@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("kind", ["lines", "layers"])
@pytest.mark.parametrize("letters", [5, 20, 40])
def test_no_label_is_cut_or_covered(letters: int, kind: Any, many: int) -> None:
    x = np.arange(9, dtype=float)
    series = tuple(Series(f"{i}" * letters, x, x + i, i) for i in range(6))
    marks = ((0.5, "step"), (7.9, "lane cpu.0 was killed"))
    one = Chart("title", "", "requests/s offered", "y", series, kind, limit=Limit(3, "budget"), marks=marks)
    figure = draw([one] * many)
    figure.canvas.draw()
    page = figure.bbox
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        name = axes.xaxis.label.get_window_extent()
        assert legend.y1 <= name.y0
        for box in (legend, name, *(note.get_window_extent() for note in axes.texts)):
            assert page.x0 <= box.x0
            assert box.x1 <= page.x1
            assert page.y0 <= box.y0
        # the plot itself keeps most of its width
        assert axes.bbox.width > 0.7 * page.width / many
