"""Streams of requests on several connections against one request a fresh connection through plain ASGI.

The same bytes mean the same however they are cut, on whichever connection, first or thousandth. By hand and
for long: `python -m benchmarks.fuzz_streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.bundle import Bundle
from tests.server.http.streams.fuzzer import Fuzzer, served

EXAMPLES = 120


@pytest.fixture(scope="module")
def fuzzer(bundle: Bundle, clicks: Path) -> Iterator[Fuzzer]:
    """A real server in a child process and the reference in this one."""
    with served(bundle, clicks) as fuzzer:
        yield fuzzer
        assert fuzzer.complaints == ""


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(random=st.randoms(use_true_random=False))
def test_a_request_means_the_same_in_any_stream(fuzzer: Fuzzer, random: Random) -> None:
    stream = fuzzer.drawn(random)
    found = fuzzer.run(stream)
    assert not found, "\n".join([*found, repr(stream)])
