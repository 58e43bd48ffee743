"""Checks whether the server in this container is ready; the Docker image runs it as its HEALTHCHECK.

    python -m polyrec.server.app.healthcheck

It exits with status 0 if so. The address comes from the kernel's list of listening sockets, so the check
needs no configuration. It imports only the standard library, to start fast.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

LISTENS = "0A"
TIMEOUT_S = 2.0


def main(processes: list[str]) -> int:
    """Returns the exit status and prints why it is not 0.

    processes: pids to check; empty for all readable.
    """
    found = False
    for pid in processes or sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        for place in listening(pid):
            found = True
            if ready(place):
                return 0
    print("not ready" if found else "nothing listens")
    return 1


def listening(pid: str) -> Iterator[str]:
    """Yields `host:port` of every TCP socket a process listens on; nothing if its files are not readable."""
    links = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        tables = [(kind, Path(f"/proc/{pid}/net/{kind}").read_text()) for kind in ("tcp", "tcp6")]
    except OSError:
        return
    inodes = {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}
    for kind, table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                yield _place(kind, fields[1])


def ready(place: str) -> bool:
    """Whether /readyz at `host:port` answers 200 over HTTP or TLS. Does not verify the certificate."""
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    for scheme in ("http", "https"):
        try:
            with urllib.request.urlopen(f"{scheme}://{place}/readyz", timeout=TIMEOUT_S, context=unverified):
                return True
        except urllib.error.HTTPError:
            return False
        except (OSError, ValueError, http.client.HTTPException):  # for instance the gRPC port
            continue
    return False


def _place(kind: str, text: str) -> str:
    """Converts the kernel's text, such as 0100007F:1F40 (32-bit words in host byte order), to `host:port`."""
    address, port = text.split(":")
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    if sys.byteorder == "big":
        words = [word[::-1] for word in words]
    packed = b"".join(words)
    if kind == "tcp":
        host = IPv4Address(packed)
        return f"{'127.0.0.1' if host.is_unspecified else host}:{int(port, 16)}"
    host6 = IPv6Address(packed)
    return f"[{'::1' if host6.is_unspecified else host6}]:{int(port, 16)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
