"""Asks a Redis server that closed a connection at once for its reason.

In protected mode, a server sends an error before it is asked anything, and closes the connection. A request
sent meanwhile fails with `Broken pipe` or `Connection reset by peer`, and the error is lost. So a connection
on which nothing is sent is needed to read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError, ResponseError

PROTECTED = "DENIED"
"""Code of the error of a server in protected mode."""
REFUSAL_S = 0.5
"""Maximum wait for the server's error."""
ADDRESS = "connection_class", "host", "port", "path"
"""Options of a URL that are used, beside those of TLS. For others redis-py would send commands, or they are
of a pool of connections.
"""


def refusal(url: str, ca_file: Path | None = None) -> str | None:
    """Returns the error with which a server refuses any connection, None if it does not."""
    given = parse_url(url).items()
    options: dict[str, Any] = {k: v for k, v in given if k in ADDRESS or k.startswith("ssl_")}
    kind = options.pop("connection_class", Connection)
    if kind is SSLConnection and ca_file is not None:
        options["ssl_ca_certs"] = ca_file
    options |= {"socket_timeout": REFUSAL_S, "socket_connect_timeout": REFUSAL_S}
    connection: Connection = kind(**options, protocol=2, driver_info=None)
    try:
        connection.connect()
        connection.read_response()
    except ResponseError as e:
        return str(e)
    # MemoryError and TypeError are hiredis' for what is no reply of Redis
    except (OSError, RedisError, MemoryError, TypeError):
        pass
    finally:
        connection.disconnect()
    return None
