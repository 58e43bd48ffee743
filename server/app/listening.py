"""The address of a server: binds it, and announces that the server is ready there."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass

import orjson

from polyrec.models.errors import PolyrecError

BACKLOG = 2048


class PortInUse(PolyrecError):
    """The address to listen on is not available."""


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Returns a bound, listening socket; port 0 takes a free one. Raises PortInUse, which names `option`."""
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


def reserve(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen; port 0 takes a free one. Raises PortInUse.

    The gRPC servers of this process and its children listen there as well (SO_REUSEPORT). Until they do,
    connections are refused.
    """
    # sockets that share a port do not conflict; one that listens alone does, so no stranger has the port
    with listen(host, port, "--grpc-port") as alone:
        family, address = alone.family, alone.getsockname()
    reserved = socket.socket(family, socket.SOCK_STREAM)
    # without SO_REUSEADDR, by which a socket that does not listen would keep no stranger out
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved


def resolved(host: str, port: int) -> str:
    """`host:port` with the address of a host name, as `reserve` binds it."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"


def url_of(scheme: str, bound: socket.socket) -> str:
    """URL of a bound socket."""
    return f"{scheme}://{address_of(bound)}"


def address_of(bound: socket.socket) -> str:
    """`host:port` of a bound socket, an IPv6 address in brackets."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Ready:
    """The announcement of a server that is ready.

    processes: own addresses of the processes that share `url`; empty if there is one. grpc: `host:port` of
    the gRPC server; None: there is none.
    """

    url: str
    pid: int
    paths: tuple[str, ...]
    runtime: str
    bundle_version: str
    processes: tuple[str, ...] = ()
    grpc: str | None = None

    def line(self) -> str:
        """One line of JSON, for a program that started the server."""
        return orjson.dumps({"event": "ready"} | asdict(self)).decode()
