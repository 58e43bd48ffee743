from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib import image

from polyrec.report.chart import DARK, LIGHT, Theme, png
from polyrec.report.quality.comparison import ModelComparison
from polyrec.report.quality.plots import PLOTS, Plot, draw, front, points

Make = Callable[..., ModelComparison]


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(image.imread(io.BytesIO(content), format="png"))[..., :3]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda p: p.file)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_plot_is_drawn_on_its_themes_page(
    comparison: ModelComparison, plot: Plot, theme: Theme
) -> None:
    shown = pixels(png(draw(comparison, plot, theme)))
    page = [int(theme.page[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert shown[0, 0] == pytest.approx(page, abs=0.01)
    assert (np.abs(shown - page).max(axis=2) > 0.2).mean() > 0.005


def test_a_bar_reaches_from_the_baseline_as_far_as_the_difference(comparison: ModelComparison) -> None:
    p = points(comparison, Plot("log_loss", "bytes"))
    assert p.baseline is not None
    for entry, bar, quality in zip(comparison.entries, p.bars, p.quality, strict=True):
        if entry.standing.to_baseline is None:
            assert bar.tolist() == [quality, quality]
        else:
            interval = entry.standing.to_baseline["log_loss"]
            assert bar - p.baseline == pytest.approx([interval.low, interval.high])


def test_the_front_is_what_no_model_beats(comparison: ModelComparison) -> None:
    # costs rise with each model: the first, and those better than all before
    assert front(comparison, Plot("auc", "mflop")) == ["table", "better"]


@pytest.mark.parametrize("names", [("a",), ("a", "same"), tuple(f"model-{i}" for i in range(12))], ids=len)
def test_few_equal_and_many_models_can_be_drawn(make: Make, names: tuple[str, ...]) -> None:
    assert png(draw(make(*names), PLOTS[0], LIGHT))


def test_a_metric_that_is_not_defined_leaves_an_empty_picture(make: Make) -> None:
    undefined = make("a", "b", one_class=True)
    assert points(undefined, Plot("auc", "bytes")).labels == []
    assert png(draw(undefined, Plot("auc", "bytes"), LIGHT))
