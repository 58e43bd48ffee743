"""Foreign text made safe for a line of a log or a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.text import error_in, printable, public


@given(st.text(st.characters(), max_size=900))
def test_any_text_becomes_one_bounded_printable_line(text: str) -> None:
    line = printable(text, 100)
    assert len(line.splitlines()) <= 1
    assert len(line) <= 6 * 100
    assert line.encode().decode() == line


def test_unprintable_characters_are_escaped() -> None:
    assert printable("plan 'a\nb\x1b[2J\ud800'") == "plan 'a\\nb\\x1b[2J\\ud800'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bundle '/srv/models/table': net is missing", "bundle 'table': net is missing"),
        ("cannot read plan '/etc/polyrec/plan.json'", "cannot read plan 'plan.json'"),
        ("[Errno 2] No such file: '/a/b/'", "[Errno 2] No such file: '/'"),
        ("bundle 'runs/demo/table' is corrupt", "bundle 'runs/demo/table' is corrupt"),
        ("redis://user:p%40ss@host:6379/1 failed", "redis://host:6379/1 failed"),
        ("redis://:p@ss@host failed", "redis://host failed"),
        ("POST http://host/v1/x", "POST http://host/v1/x"),
    ],
)
def test_credentials_and_folders_are_left_out(text: str, shown: str) -> None:
    assert public(text) == shown


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error": "no such\\nmodel"}', "no such\\nmodel"),
        (b'{"error": 5}', "5"),
        (b'{"detail": "x"}', None),
        (b'["error"]', None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_the_error_of_an_answer_is_one_line_or_none(body: bytes, error: str | None) -> None:
    assert error_in(body) == error
