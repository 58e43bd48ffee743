"""Routes rows to servers: a single one, or the masters of a Redis Cluster by slot.

Routes are discovered from the server of the URL: it reports whether it is part of a cluster, and each part
knows the others. Routes are immutable and replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from polyrec.models.tiers.remote.login import TLS_SCHEME
from polyrec.models.tiers.remote.node import Node
from polyrec.models.tiers.remote.resp import Link, RespError
from polyrec.models.tiers.remote.slots import SLOTS, Address, parse_cluster_slots

NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """nodes: by URL. of_slot: int16 [SLOTS], index into `nodes` of the server of each slot, or NOBODY; None:
    a single server.
    """

    nodes: Mapping[str, Node]
    of_slot: NDArray[np.int16] | None = None

    @property
    def whole(self) -> bool:
        """Whether every slot has a server, and all servers answer."""
        served_all = self.of_slot is None or bool((self.of_slot != NOBODY).all())
        return served_all and all(node.up for node in self.nodes.values())


def discover(seed: str, known: Routes, node: Callable[[str], Node], timeout_s: float) -> Routes:
    """Discovers the current routes.

    seed: URL of one server. known: previous routes, whose servers are tried as well. node: returns the server
    at a URL. Raises OSError if no server answers.
    """
    error = OSError("no server is known")
    answering = [url for url, server in known.nodes.items() if server.up]
    for url in dict.fromkeys([*answering, seed, *known.nodes]):
        try:
            link = node(url).connect(timeout_s)
        except OSError as e:
            error = e
            continue
        try:
            if not _in_cluster(link, timeout_s):
                return Routes({seed: node(seed)})
            ranges = parse_cluster_slots(link.call(b"CLUSTER", b"SLOTS", timeout_s=timeout_s), host_of(url))
        except OSError as e:
            error = e
            continue
        finally:
            link.close()
        masters = sorted({address for *_, address in ranges})
        of_slot = np.full(SLOTS, NOBODY, np.int16)
        for first, last, address in ranges:
            of_slot[first : last + 1] = masters.index(address)
        return Routes({where: node(where) for where in (url_of(seed, a) for a in masters)}, of_slot)
    raise error


def url_of(seed: str, address: Address) -> str:
    """Returns the URL of another server of the cluster, with the scheme of the seed."""
    scheme = TLS_SCHEME if urlsplit(seed).scheme == TLS_SCHEME else "redis"
    host, port = address
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _in_cluster(link: Link, timeout_s: float) -> bool:
    try:
        info = link.call(b"INFO", b"cluster", timeout_s=timeout_s)
    except RespError:  # a server that refuses INFO counts as a single server
        return False
    return isinstance(info, bytes) and b"cluster_enabled:1" in info


def host_of(url: str) -> str:
    """Returns the host of a URL, for redirects that contain only a port."""
    return urlsplit(url).hostname or "127.0.0.1"
