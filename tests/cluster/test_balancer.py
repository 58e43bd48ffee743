from __future__ import annotations

from polyrec.cluster.balancer import SILENT_S, lost


def test_only_a_replica_that_is_silent_and_down_is_lost() -> None:
    announced_s = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 10.0}
    applied = set(announced_s)
    states = {"a": "DOWN", "b": "UP", "c": "UP 2/3", "d": "DOWN 1/2"}
    assert lost(announced_s, states, applied, SILENT_S + 1) == ["a"]
    # HAProxy does not answer: nothing is known
    assert lost(announced_s, {}, applied, SILENT_S + 1) == []
    # a way in without HAProxy
    assert lost(announced_s, None, (), SILENT_S + 1) == ["a", "b", "c"]


def test_a_silent_replica_that_never_got_in_is_lost() -> None:
    assert lost({"refused": 0.0, "new": 10.0}, {}, (), SILENT_S + 1) == ["refused"]
