"""Binds the server's sockets, and formats the announcement that it is ready."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass

import orjson

from polyrec.models.errors import PolyrecError
from polyrec.server.http.connection.limits import ACCEPTS_PER_ITERATION

log = logging.getLogger("polyrec.server")

BACKLOG = 2048


class PortInUse(PolyrecError):
    """The address to listen on is not available."""


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Returns a listening socket; port 0 takes a free port.

    Raises PortInUse, whose message names `option`.
    """
    listener = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, UnicodeError) as e:
        if listener is not None:
            listener.close()
        raise PortInUse(
            f"cannot listen on {host}:{port}: {getattr(e, 'strerror', None) or e}; "
            f"choose another --host or {option} (0 takes a free one)"
        ) from None
    return listener


def duplicate_listener(listener: socket.socket) -> list[socket.socket]:
    """Duplicates a listening socket so that one loop iteration accepts ACCEPTS_PER_ITERATION connections.

    libuv accepts one connection per listening socket and iteration. Under load an iteration takes
    milliseconds, so with a single socket the last of hundreds of new connections would wait for a second.
    """
    return [listener, *(listener.dup() for _ in range(ACCEPTS_PER_ITERATION - 1))]


def reserve(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen; port 0 takes a free port. Raises PortInUse.

    It reserves the port for the gRPC servers of this process and its children, which bind the same port with
    SO_REUSEPORT. Until they listen, connections are refused.
    """
    # binding with SO_REUSEPORT would not detect another server that also sets it; an exclusive listener does
    with listen(host, port, "--grpc-port") as alone:
        family, address = alone.family, alone.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM)
    # not SO_REUSEADDR: with it, a socket that does not listen would not keep others off the port
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved


def resolved(host: str, port: int) -> str:
    """Returns `host:port` with the host name resolved to the address that `reserve` would bind."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"


def url_of(scheme: str, bound: socket.socket) -> str:
    """Returns the URL of a bound socket."""
    return f"{scheme}://{address_of(bound)}"


def address_of(bound: socket.socket) -> str:
    """Returns `host:port` of a bound socket, with an IPv6 address in brackets."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Ready:
    """The announcement that a server is ready.

    processes: each process's own address if several share `url`, otherwise empty.
    grpc: `host:port` of the gRPC server, None if there is none.
    """

    url: str
    pid: int
    paths: tuple[str, ...]
    runtime: str
    bundle_version: str
    processes: tuple[str, ...] = ()
    grpc: str | None = None

    def line(self) -> str:
        """Returns one line of JSON, for the program that started the server."""
        return orjson.dumps({"event": "ready"} | asdict(self)).decode()


def announce(ready: Ready, on_ready: Callable[[Ready], object]) -> None:
    """Calls `on_ready`, which writes to standard output, and logs if that cannot be written."""
    try:
        on_ready(ready)
    except OSError as e:  # a full disk or a closed pipe
        log.warning("ready, but standard output cannot be written: %s", e.strerror)
