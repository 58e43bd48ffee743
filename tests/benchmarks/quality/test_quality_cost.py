from __future__ import annotations

from benchmarks.quality.quality_cost import MODELS, WIDTHS, Measured, against_tables, draw, tables
from polyrec.report.chart import DARK, LIGHT, png

MEASURED = [
    Measured("table w4", "table", 0.10, 1.0, 100, 0.1),
    Measured("table w8", "table", 0.12, 2.0, 200, 0.2),
    Measured("nested w8", "nested", 0.13, 2.0, 200, 0.2),
    Measured("dhe", "dhe", 0.11, 1.5, 50, 5.0),
]


def test_computed_paths_are_compared_with_tables_that_cost_no_more() -> None:
    gains = {"table w4": (0.01, 0.01), "table w8": (-0.01, 0.002)}
    compared = against_tables(MEASURED, lambda _, table: gains[table])
    found = {a.equal: a for a in compared}
    assert found["bytes"].table == ""
    assert found["mflop"].table == "table w8"
    assert found["us_per_row"].table == "table w4"
    text = tables({"ml1m": MEASURED}, {"ml1m": compared})
    assert "| dhe | every table takes more | table w8: -0.0100 (-0.0139 to -0.0061) |" in text
    assert "table w4: +0.0100 (-0.0096 to +0.0296, noise)" in text


def test_the_picture_has_a_panel_for_each_data_set_in_both_themes() -> None:
    found = {"ml1m": MEASURED, "trivago": MEASURED}
    assert len(draw(found).axes) == 2
    assert len({png(draw(found, theme)) for theme in (LIGHT, DARK)}) == 2


def test_computed_models_have_the_net_of_a_table() -> None:
    shapes = {label: model.training.architecture for label, model in MODELS.items()}
    assert shapes["nested"].widths == WIDTHS
    for label, model in MODELS.items():
        if model.kind != "table":
            assert shapes[label] == shapes["table-w16"]
