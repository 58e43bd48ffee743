from __future__ import annotations

import pytest

from polyrec.server.request_ids import MAX_BYTES, id_to_join, log_extra, new_request_id, request_id


@pytest.mark.parametrize("given", [b"a", b"0b8c-4f/=!~\"'", b"x" * MAX_BYTES])
def test_a_clients_id_is_taken(given: bytes) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize(
    "given", [None, b"", b"a b", b"a\tb", b"caf\xc3\xa9", b"\x7f", b"x" * (MAX_BYTES + 1)]
)
def test_an_id_that_no_log_should_hold_is_replaced(given: bytes | None) -> None:
    made = request_id(given)
    assert made != given
    assert request_id(made) == made


def test_labels_name_a_request_by_the_id_in_its_body_if_that_is_valid() -> None:
    assert id_to_join("its-own", "of-the-call") == "its-own"
    for given in (None, "", "a b", "café", "\ud800", "x" * (MAX_BYTES + 1)):
        assert id_to_join(given, "of-the-call") == "of-the-call"


def test_made_ids_differ() -> None:
    made = [new_request_id() for _ in range(1000)]
    assert len(set(made)) == len(made)


def test_a_record_without_an_id_has_no_field() -> None:
    assert log_extra(b"r-1") == log_extra("r-1") == {"fields": {"request_id": "r-1"}}
    assert log_extra(b"") == log_extra("") == {}
