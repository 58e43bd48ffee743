"""Streams of requests on several connections against one request a fresh connection through plain ASGI.

The same bytes mean the same however they are cut, on whichever connection, first or thousandth. By hand and
for long: `python -m benchmarks.http.fuzz_streams`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from tests.server.http.streams.fuzzer import Fuzzer, served

EXAMPLES = 70


@pytest.fixture(scope="module")
def fuzzer(bundle: Bundle, clicks: Path) -> Iterator[Fuzzer]:
    """A real server in a child process and the reference in this one."""
    with served(bundle, clicks) as fuzzer:
        yield fuzzer
        assert fuzzer.complaints == ""


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
# A stream that fails is printed as it is: to make it smaller, each attempt needs a server without a past, and
# waits for answers that do not come. `python -m benchmarks.http.fuzz_streams --shrink` does that.
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**64 - 1))
def test_a_request_means_the_same_in_any_stream(fuzzer: Fuzzer, seed: int) -> None:
    stream = fuzzer.drawn(Random(seed))
    found = fuzzer.run(stream)
    assert not found, "\n".join([*found, repr(stream)])
