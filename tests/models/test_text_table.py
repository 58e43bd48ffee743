from __future__ import annotations

from polyrec.models.text_table import aligned

ROWS = [("path", "rows", "of all"), ("a", "12,345", "1%")]


def test_words_are_left_aligned_and_numbers_right_aligned() -> None:
    assert aligned(ROWS) == ["path    rows  of all", "a     12,345      1%"]
    assert aligned(ROWS, left=3) == ["path  rows    of all", "a     12,345  1%"]


def test_no_rows_format_as_no_lines() -> None:
    assert aligned([]) == []
