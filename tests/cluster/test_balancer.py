"""The balancer: which replicas it drops, and that failures of the disk do not end it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from polyrec.cluster.balancer import SILENT_S, Balancer, lost
from polyrec.cluster.haproxy_config import Endpoint
from polyrec.cluster.spec import ClusterSpec, GroupSpec


def spec(replicas: int = 1) -> str:
    group = GroupSpec(name="all", plan=Path("/plan.json"), replicas=replicas)
    return ClusterSpec(groups=(group,)).model_dump_json()


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


def test_a_restarted_balancer_finds_a_whole_spec(tmp_path: Path) -> None:
    balancer, file = Balancer(str(tmp_path), spec(1)), tmp_path / "cluster.json"
    with file.open() as before:
        asyncio.run(balancer.set_spec(spec(2)))
        # a reader that opened it before the change reads the whole old one
        assert before.read() == spec(1)
    assert asyncio.run(Balancer(str(tmp_path), spec(1)).spec()) == spec(2)
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.json"]


def test_a_spec_that_cannot_be_kept_over_a_restart_is_not_in_force(tmp_path: Path) -> None:
    balancer = Balancer(str(tmp_path / "balancer"), spec(1))
    shutil.rmtree(tmp_path / "balancer")
    with pytest.raises(FileNotFoundError):
        asyncio.run(balancer.set_spec(spec(2)))
    assert asyncio.run(balancer.spec()) == spec(1)


def test_a_balancer_whose_folder_is_gone_goes_on_checking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("polyrec.cluster.balancer.CHECK_S", 0)
    balancer = Balancer(str(tmp_path / "balancer"), spec())
    shutil.rmtree(tmp_path / "balancer")

    async def checked() -> None:
        with pytest.raises(FileNotFoundError):
            await balancer.add(Endpoint("a", "127.0.0.1", 1, 2), {})
        while len(caplog.records) < 3:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(checked(), 20))
    assert "HAProxy is not configured" in caplog.text
