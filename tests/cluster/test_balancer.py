from __future__ import annotations

from polyrec.cluster.balancer import SILENT_S, lost


def test_only_a_replica_that_is_silent_and_down_is_lost() -> None:
    announced_s = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 10.0}
    states = {"a": "DOWN", "b": "UP", "c": "UP 2/3", "d": "DOWN 1/2"}
    assert lost(announced_s, states, SILENT_S + 1) == ["a"]
    # HAProxy does not answer: nothing is known
    assert lost(announced_s, {}, SILENT_S + 1) == []
    # a way in without HAProxy
    assert lost(announced_s, None, SILENT_S + 1) == ["a", "b", "c"]
