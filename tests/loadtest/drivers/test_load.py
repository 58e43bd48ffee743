from __future__ import annotations

import numpy as np
import pytest

from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import load_of

TARGET = Target("http://host/v1/rank")
DUE = np.array([0.1, 0.2, 0.3])


@pytest.mark.parametrize("prepare", [False, True])
def test_each_request_carries_its_own_budget(prepare: bool) -> None:
    budget = np.array([0.01, np.inf, 0.05])
    load = load_of(TARGET, DUE, 1.0, lambda i: b"%d" % i, budget_s=budget, prepare=prepare)
    assert b"X-Latency-Budget-Ms: 10\r\n" in load.payload(0)
    assert b"X-Latency-Budget-Ms" not in load.payload(1)
    assert b"X-Latency-Budget-Ms: 50\r\n" in load.payload(2)
    assert load.payload(2).endswith(b"\r\n\r\n2")
    assert load.budget_s.tolist() == budget.tolist()


def test_the_budget_sent_can_be_smaller_than_the_clients() -> None:
    load = load_of(TARGET, DUE, 1.0, lambda i: b"", budget_s=0.01, sent_budget_s=0.0095)
    assert b"X-Latency-Budget-Ms: 9.5\r\n" in load.payload(0)
    assert load.budget_s.tolist() == [0.01] * 3


def test_a_budget_of_zero_is_an_error() -> None:
    with pytest.raises(LoadError, match="a budget of 0 ms"):
        load_of(TARGET, DUE, 1.0, lambda i: b"", budget_s=0.0)
