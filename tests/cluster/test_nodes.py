"""Finding Ray's head."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from polyrec.cluster.nodes import connect
from polyrec.cluster.spec import ClusterError


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_a_head_that_is_not_there_is_named_at_once(nobody: str) -> None:
    with pytest.raises(ClusterError, match=f"no Ray is running at {nobody}: nothing listens there"):
        connect(nobody)


def test_the_head_of_before_a_crash_is_not_waited_for(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps the address of its last head in a file, and would try it for many minutes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(nobody)
    with pytest.raises(ClusterError, match=f"no Ray is running at {nobody}"):
        connect(None)
