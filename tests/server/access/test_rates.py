from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.server.access.rates import GUESS_BURST, MAX_ADDRESSES, GuessLimiter, TokenBucket, network_of


@given(
    rate=st.floats(0.1, 1000),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_more_pass_in_any_time_than_the_rate_and_one_burst(rate: float, gaps: list[float]) -> None:
    bucket = TokenBucket(rate, rate, 0.0)
    now_s, passed = 0.0, 0
    for gap in gaps:
        now_s += gap
        if not bucket.take(now_s):
            passed += 1
        assert passed <= max(1.0, rate) + rate * now_s + 1e-6


@given(rate=st.floats(0.1, 1000), wait=st.floats(0, 1))
def test_waiting_for_retry_after_is_enough(rate: float, wait: float) -> None:
    bucket = TokenBucket(rate, rate, 0.0)
    while not bucket.take(wait):
        pass
    wait_s = bucket.wait_s(wait)
    assert 0 < wait_s <= 1 / rate
    assert not bucket.take(wait + wait_s * (1 + 1e-9) + 1e-9)


def test_an_address_has_some_guesses_and_then_one_a_second() -> None:
    guesses = GuessLimiter()
    for _ in range(GUESS_BURST):
        assert guesses.wait_s("10.0.0.1", 5.0) == 0
        guesses.wrong("10.0.0.1", 5.0)
    assert guesses.wait_s("10.0.0.1", 5.0) == pytest.approx(1.0)
    assert guesses.wait_s("10.0.0.2", 5.0) == 0
    assert guesses.wait_s("10.0.0.1", 6.0) == 0


def test_the_limiter_keeps_a_bounded_number_of_recent_addresses() -> None:
    guesses = GuessLimiter()
    for i in range(3 * MAX_ADDRESSES):
        guesses.wrong(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", 0.0)
        guesses.wrong("192.0.2.1", 0.0)
        assert i < GUESS_BURST or guesses.wait_s("192.0.2.1", 0.0) > 0, "it was forgotten"
    assert len(guesses) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_ipv6_client_is_its_network(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) == same


def test_a_log_names_a_network_so_that_people_can_read_it() -> None:
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert network_of("fe80::1%eth0") == "fe80::/64"
