from __future__ import annotations

import subprocess
from pathlib import Path

from polyrec.cluster.haproxy_config import Endpoint, configuration
from polyrec.cluster.haproxy_process import binary

ENDPOINTS = [Endpoint("b", "10.0.0.2", 8001, 9001, 500.0), Endpoint("a", "10.0.0.1", 8000, 9000, 1000.0)]


def test_servers_stand_in_the_order_of_their_names_with_weights_of_their_capacity(tmp_path: Path) -> None:
    text = configuration("127.0.0.1", 8080, tmp_path / "s", ENDPOINTS)
    servers = [line.split() for line in text.splitlines() if line.strip().startswith("server ")]
    assert [line[1:5] for line in servers] == [
        ["a", "10.0.0.1:8000", "weight", "100"],
        ["b", "10.0.0.2:8001", "weight", "50"],
        ["unchecked-a", "10.0.0.1:8000", "weight", "100"],
        ["unchecked-b", "10.0.0.2:8001", "weight", "50"],
    ]
    assert ["backup" in line for line in servers] == [False, False, True, True]
    assert text == configuration("127.0.0.1", 8080, tmp_path / "s", ENDPOINTS[::-1])


def test_haproxy_accepts_the_configuration_without_a_warning(tmp_path: Path) -> None:
    for endpoints in ([], ENDPOINTS, [Endpoint("six", "::1", 8000, 9000)]):
        file = tmp_path / "haproxy.cfg"
        file.write_text(configuration("::", 8080, tmp_path / "s", endpoints))
        done = subprocess.run([binary(), "-c", "-V", "-f", str(file)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
