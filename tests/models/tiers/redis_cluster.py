"""A real Redis Cluster of three masters on free ports of 127.0.0.1, for tests."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.models.schema.batch import I64
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.waiting import wait_until

MASTERS = 3
SLOTS = 16384


class RedisCluster:
    """Serves what it can while a part is away. What is killed comes back empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.nodes = [self._started(i) for i in range(MASTERS)]
        bounds = [i * SLOTS // MASTERS for i in range(MASTERS + 1)]
        for i, node in enumerate(self.nodes):
            self.send(i, "CLUSTER", "SET-CONFIG-EPOCH", str(i + 1))
            self.send(i, "CLUSTER", "ADDSLOTSRANGE", str(bounds[i]), str(bounds[i + 1] - 1))
            if i:
                self._meet(node)
        for i in range(MASTERS):
            wait_until(partial(self.knows_all, i), "the cluster did not come together")

    def _started(self, number: int) -> RedisServer:
        return RedisServer(
            self._folder,
            *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"),
            *("--repl-diskless-sync-delay", "0"),
            *("--cluster-config-file", f"nodes.{number}.conf", "--cluster-port", str(_free_port())),
        )

    def _meet(self, node: RedisServer) -> None:
        bus = node.options[node.options.index("--cluster-port") + 1]
        self.send(0, "CLUSTER", "MEET", "127.0.0.1", str(node.port), bus)

    def replicate(self, master: int) -> int:
        """One more server, a replica of a master, that has all of it; gives its place in `nodes`."""
        self.nodes.append(self._started(len(self.nodes)))
        replica = len(self.nodes) - 1
        self._meet(self.nodes[replica])

        def follows() -> bool:
            return self.send(replica, "CLUSTER", "REPLICATE", self.name(master)) == b"OK"

        wait_until(follows, "the replica does not know its master")
        # one that takes over before it has heard of its master's slots takes none
        wait_until(lambda: self.knows_all(replica), "the replica does not know the slots")
        wait_until(lambda: b"master_link_status:up" in self._told(replica, "replication"), "no replication")
        return replica

    @property
    def url(self) -> str:
        """URL of one server."""
        return self.nodes[0].url

    def send(self, node: int, *words: str) -> Any:
        return self.nodes[node].send(*words)

    def owners(self, slots: I64) -> I64:
        """The place in `nodes` of each slot's master, as the first one says."""
        of_slot = np.full(SLOTS, -1)
        ports = [node.port for node in self.nodes]
        for first, last, (_, port, *_), *_ in self.send(0, "CLUSTER", "SLOTS"):
            of_slot[first : last + 1] = ports.index(port)
        return of_slot[slots]

    def name(self, node: int) -> str:
        told = self.send(node, "CLUSTER", "MYID")
        assert isinstance(told, bytes)
        return told.decode()

    def keys_of(self, node: int, slot: int) -> list[str]:
        keys = self.send(node, "CLUSTER", "GETKEYSINSLOT", str(slot), "1000000")
        assert isinstance(keys, list)
        return [key.decode() for key in keys if isinstance(key, bytes)]

    def error_count(self, kind: str) -> int:
        """Number of such error replies of all servers."""
        count = 0
        for i in range(len(self.nodes)):
            for line in self._told(i, "errorstats").decode().splitlines():
                if line.startswith(f"errorstat_{kind}:count="):
                    count += int(line.rpartition("=")[2])
        return count

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def knows_all(self, node: int) -> bool:
        """Whether one of them has joined the others."""
        told = self.send(node, "CLUSTER", "INFO")
        assert isinstance(told, bytes)
        return b"cluster_state:ok" in told and b"cluster_slots_assigned:%d" % SLOTS in told

    def caught_up(self, master: int, replica: int) -> bool:
        """Whether a replica has all that its master has been given."""
        offset = "master_repl_offset:"
        told = [
            self._told(node, "replication").decode().split(offset)[1].split()[0] for node in (master, replica)
        ]
        return told[0] == told[1]

    def _told(self, node: int, section: str) -> bytes:
        told = self.send(node, "INFO", section)
        assert isinstance(told, bytes)
        return told


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
