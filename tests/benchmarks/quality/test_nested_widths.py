from __future__ import annotations

import pytest

from benchmarks.quality.nested_widths import FEWER_BITS, alone, table
from polyrec.models.training.recipe import RecipeFile

LADDER = RecipeFile.model_validate(
    {"architecture": {"widths": [4, 8], "top": [64]}, "recipe": {"sparse_lr": 0.5, "block_lr": [1.0, 0.5]}}
)


def test_a_model_alone_has_the_shape_of_the_head_and_the_mean_step_size() -> None:
    narrow, wide = alone(LADDER, 4), alone(LADDER, 8)
    assert narrow.architecture == LADDER.architecture.head(4)
    assert narrow.recipe.sparse_lr == 0.5
    assert wide.recipe.sparse_lr == pytest.approx(0.5 * 0.75)
    assert wide.recipe.block_lr == narrow.recipe.block_lr == ()


def test_differences_are_paired_by_seed() -> None:
    runs = {}
    for which in ("apart", "nested", *FEWER_BITS):
        for width in (4, 8):
            gain = 0.001 if which == "nested" else 0.0
            runs[f"{which} w{width}"] = [{"information": x + gain, "auc": 0.8} for x in (0.25, 0.26)]
    shapes = {f"w{w}": {"mflop": 0.1, "head_bytes": 10, "apart_bytes": 100} for w in (4, 8)}
    found = {"runs": runs, "widths": [4, 8], "seeds": [0, 1], "shapes": shapes, "nested_bytes": 120}
    text = table(found)
    assert "| nested less apart | +0.0010 | +0.0010 |" in text
    assert "| trained apart | 0.2550 ± 0.0071 |" in text
    assert "120 nested, 200 apart" in text
