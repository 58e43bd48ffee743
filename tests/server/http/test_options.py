from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.access.tokens import Client, Right
from polyrec.server.errors import Forbidden, Malformed
from polyrec.server.http.options import NO_OPTIONS, RequestOptions, parse_options

ANYBODY = Client("anonymous", frozenset())
OPTIONS = st.builds(
    RequestOptions,
    st.none() | st.floats(1e-6, 3600.0),
    st.none() | st.integers(0, 5),
    st.none() | st.booleans(),
)
CLIENTS = st.builds(Client, st.just("shop"), st.frozensets(st.sampled_from(["priority", "quality", "admin"])))


def test_headers_say_budget_priority_and_quality_and_the_last_counts() -> None:
    headers = [
        (b"host", b"x"),
        (b"x-latency-budget-ms", b"7"),
        (b"x-polyrec-priority", b"2"),
        (b"x-polyrec-quality", b"required"),
        (b"x-latency-budget-ms", b"12.5"),
    ]
    assert parse_options(headers) == RequestOptions(0.0125, 2, True)
    assert parse_options([]) == NO_OPTIONS
    assert parse_options([(b"x-polyrec-quality", b"any")]).best_only is False


def test_the_smallest_budget_is_not_the_default_one() -> None:
    assert (parse_options([(b"x-latency-budget-ms", b"5e-324")]).budget_s or 0) > 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (b"x-latency-budget-ms", b"0", "X-Latency-Budget-Ms is '0'"),
        (b"x-latency-budget-ms", b"nan", "X-Latency-Budget-Ms is 'nan'"),
        (b"x-latency-budget-ms", b"1_000", "X-Latency-Budget-Ms is '1_000'"),
        (b"x-latency-budget-ms", b"3600001", "an hour"),
        (b"x-polyrec-priority", b"-1", "X-Polyrec-Priority is '-1'"),
        (b"x-polyrec-priority", b"9999999999", "X-Polyrec-Priority"),
        (b"x-polyrec-quality", b"best", "X-Polyrec-Quality is 'best'"),
    ],
)
def test_unreadable_option_headers_are_malformed(name: bytes, value: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        parse_options([(name, value)])


@given(own=OPTIONS, other=OPTIONS)
def test_options_that_are_given_win(own: RequestOptions, other: RequestOptions) -> None:
    for got, mine, others in zip(own.over(other), own, other, strict=True):
        assert got == (others if mine is None else mine)


@given(options=OPTIONS, client=CLIENTS, max_s=st.floats(1e-3, 3600))
def test_options_are_limited_by_the_cap_and_the_rights(
    options: RequestOptions, client: Client, max_s: float
) -> None:
    lacks = (options.priority and "priority" not in client.rights) or (
        options.best_only and "quality" not in client.rights
    )
    try:
        allowed = options.allowed(client, max_s)
    except Forbidden:
        assert lacks
        return
    assert not lacks
    assert (allowed.priority, allowed.best_only) == (options.priority, options.best_only)
    if options.budget_s is None:
        assert allowed.budget_s is None
    else:
        assert allowed.budget_s == min(options.budget_s, max_s)


@pytest.mark.parametrize(
    ("options", "right", "header"),
    [
        (RequestOptions(priority=1), "priority", "X-Polyrec-Priority"),
        (RequestOptions(best_only=True), "quality", "X-Polyrec-Quality"),
    ],
)
def test_a_refusal_names_the_header_and_the_remedy(
    options: RequestOptions, right: Right, header: str
) -> None:
    with pytest.raises(Forbidden) as error:
        options.allowed(ANYBODY, 1.0)
    for part in (header, f"right '{right}'", f"--open-rights {right}", "leave it out"):
        assert part in str(error.value)
    assert options.allowed(Client("shop", frozenset({right})), 1.0) is options


def test_the_defaults_spelled_out_need_no_right() -> None:
    options = RequestOptions(0.5, 0, False)
    assert options.allowed(ANYBODY, 1.0) is options
