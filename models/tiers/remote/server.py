"""Manages one Redis server: its idle connections, and whether it answers.

Connections are redis-py's, which log in and speak TLS. Its pools and clients are not used, because they
retry, and limit the time of each reply instead of a whole batch.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from select import POLLIN, poll
from typing import Any
from urllib.parse import urlsplit

from redis.connection import Connection, SSLConnection, parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from polyrec.models.tiers.remote.login import Login, place
from polyrec.models.tiers.remote.refusal import PROTECTED, refusal

log = logging.getLogger("polyrec.tiers")

LACKS_EVERY_S = 60.0
MAX_ERROR = 200
"""Maximum characters of a server's error in the log."""
MAX_CODES = 16
"""Maximum error codes, such as NOPERM, that the log distinguishes; the server chooses them."""
MAX_LATE = 3
"""Late replies in a row after which a server counts as down."""
RUN_ID = re.compile(rb"run_id:(\w+)")
CALM_S = 5.0
"""Time without a failure after which the log says that a server answers again; a slow one fails by turns."""


def _readable(connection: Connection) -> bool:
    """Returns whether an idle connection has data to read or is closed.

    Polls the socket directly: redis-py's can_read takes 20 microseconds, as it reads and handles an
    exception.
    """
    waiting = poll()
    waiting.register(connection._sock, POLLIN)
    return bool(waiting.poll(0))


class Server:
    """One Redis server. Thread-safe.

    url: redis[s]://host[:port][/database], or unix:///path. up: whether requests are sent to it.
    why_down: why not. on_closed: called when it has closed an idle connection.
    """

    def __init__(self, url: str, login: Login, on_closed: Callable[[], object] = lambda: None) -> None:
        self.url = url
        self.up = True
        self.why_down = ""
        self._login = login
        self._on_closed = on_closed
        self._has_closed = False
        """Whether it has closed idle connections since its run id was last compared."""
        self._run_id: bytes | None = None
        self._idle: list[Connection] = []
        self._logged_s = dict.fromkeys(("absent", "error", "foreign", "target"), -LACKS_EVERY_S)
        self._most_kinds = len(self._logged_s) + MAX_CODES
        self._late = 0
        """Late replies since the last complete one."""
        self._has_failed = False
        """Whether there were failures that the log has not yet said to be over."""
        self._first_failed_s = self._failed_s = 0.0

    @property
    def place(self) -> str:
        """The server's URL for display."""
        return place(self.url)

    def connect(self, timeout_s: float) -> Connection:
        """Opens a connection and logs in. timeout_s: limit of each step and of later sends.

        Raises TimeoutError if the server is late, else OSError.
        """
        options: dict[str, Any] = parse_url(self.url)
        kind = options.pop("connection_class", Connection)
        if kind is SSLConnection:
            options["ssl_ca_certs"] = self._login.ca_file
        connection: Connection = kind(
            **options,
            username=self._login.username,
            password=self._login.password,
            socket_timeout=timeout_s,
            protocol=2,
            driver_info=None,
        )
        try:
            connection.connect()
        except AuthenticationError:
            # the server's message may quote the password
            raise OSError(f"the store at {self.place} refused AUTH") from None
        except RedisTimeoutError as e:
            raise TimeoutError(f"the store at {self.place} cannot be reached: {e}") from None
        except (OSError, RedisError) as e:
            raise OSError(f"the store at {self.place} cannot be reached: {e}") from None
        return connection

    def take(self, timeout_s: float) -> Connection:
        """Returns an idle or a new connection. Raises OSError."""
        connection = self.take_open()
        return self.connect(timeout_s) if connection is None else connection

    def take_open(self) -> Connection | None:
        """Returns an idle connection, None if there is none."""
        while (connection := self._pop()) is not None:
            # an idle connection with something to read was closed by the server
            if not _readable(connection):
                return connection
            connection.disconnect()
            self._has_closed = True
            self._on_closed()
        return None

    def put_back(self, connection: Connection) -> None:
        """Returns a connection to the pool, unused or after complete replies."""
        self._idle.append(connection)

    def answered(self, connection: Connection) -> None:
        """Puts back a connection after complete replies, which end a series of late ones or of failures."""
        self.put_back(connection)
        self._late = 0
        if self._has_failed and time.monotonic() - self._failed_s >= CALM_S:
            lasted_s = self._failed_s - self._first_failed_s
            log.warning("the remote store at %s answers again; it failed for %.0f s", self.place, lasted_s)
            self._has_failed = False

    def fail(self, error: Exception) -> bool:
        """Records a failure and logs the first of a series; returns whether the server is down.

        Fewer than MAX_LATE late replies in a row do not mark it as down, which would lose the rows of all
        requests until it is retried, many more than the late ones.
        """
        now_s = time.monotonic()
        if not self._has_failed:
            log.warning("the remote store at %s failed: %s", self.place, self.reason(error))
            self._first_failed_s = now_s
        self._has_failed = True
        self._failed_s = now_s
        if isinstance(error, TimeoutError | RedisTimeoutError):
            self._late += 1
            if self._late < MAX_LATE:
                return not self.up
        self.up, self.why_down = False, self.reason(error)
        self.close()
        return True

    def reason(self, error: Exception) -> str:
        """Returns an error's text without the leading server name, for messages that begin with it."""
        return str(error).removeprefix(f"the store at {self.place} ")

    def revive(self, timeout_s: float, on_restart: Callable[[], object]) -> None:
        """Marks the server as up if it answers, else raises OSError.

        on_restart: called before it gets requests if it was restarted. If it has only closed connections, it
        may have got some.
        """
        if self.up and self._has_closed:
            self._has_closed = False
            if self.has_restarted(timeout_s):
                on_restart()
        if not self.up:
            self._ask(timeout_s, ("PING",))
            if self.has_restarted(timeout_s):
                on_restart()
            # its next late reply marks it as down: it may answer PING but no requests for rows
            self._late = MAX_LATE - 1
            self.up = True

    def has_restarted(self, timeout_s: float) -> bool:
        """Returns whether its run id is known to have changed since the last call."""
        try:
            info = self._ask(timeout_s, ("INFO", "server"))
        except OSError:  # a proxy that has PING but no INFO must not stay down
            return False
        # an error for a user without the right
        found = RUN_ID.search(info) if isinstance(info, bytes) else None
        before, self._run_id = self._run_id, found[1] if found else None
        return before is not None and before != self._run_id

    def log_absent(self, absent: int, asked: int) -> None:
        """Logs that rows are absent, as after a restart with an empty store."""
        text = f"lacks {absent} of {asked} rows: reload a plan with `fill: true` to write them"
        self._log_at_times("absent", text)

    def log_foreign(self, foreign: int, asked: int) -> None:
        """Logs that values are no rows of the bundle: of another size, or with impossible numbers."""
        text = (
            f"has {foreign} of {asked} values that are no rows of this bundle, so something else writes to "
            "its keys: reload a plan with `fill: true` to write the rows again"
        )
        self._log_at_times("foreign", text)

    def log_target(self, target: Server, error: Exception) -> None:
        """Logs that a server to which it redirects requests fails."""
        text = f"redirects requests to {target.place}, which failed: {target.reason(error)}"
        self._log_at_times("target", text)

    def log_error(self, error: str) -> None:
        """Logs the reply to a request that was refused; its first word is a code of Redis.

        Each code has its own line a minute, since a frequent error would hide a more important one.
        """
        code = f"error {error[:MAX_ERROR].partition(' ')[0]}"
        if len(self._logged_s) < self._most_kinds:
            self._logged_s.setdefault(code, -LACKS_EVERY_S)
        self._log_at_times(
            code if code in self._logged_s else "error", f"refuses requests: {error[:MAX_ERROR]}"
        )

    def _log_at_times(self, what: str, text: str) -> None:
        """Logs a warning, at most once per LACKS_EVERY_S for each `what`."""
        now_s = time.monotonic()
        if now_s - self._logged_s[what] >= LACKS_EVERY_S:
            self._logged_s[what] = now_s
            log.warning("the remote store at %s %s", self.place, text)

    def masters(self, timeout_s: float) -> list[tuple[int, int, str]] | None:
        """Queries the masters of its cluster: (first slot, last slot, URL); None if it is in no cluster.

        Raises OSError.
        """
        info = self._ask(timeout_s, ("INFO", "cluster"))
        # a server that refuses INFO counts as a single server
        if not isinstance(info, bytes) or b"cluster_enabled:1" not in info:
            return None
        slots = self._ask(timeout_s, ("CLUSTER", "SLOTS"))
        try:
            # the host is nil if the cluster is set to let clients use the address that they know
            masters = [
                (first, last, self.sibling((host or b"").decode(), port))
                for first, last, (host, port, *_), *_ in slots
            ]
            if all(0 <= first <= last < REDIS_CLUSTER_HASH_SLOTS for first, last, _ in masters):
                return masters
        except (AttributeError, TypeError, ValueError):
            pass
        raise OSError(f"the store at {self.place} sent a map of its cluster that cannot be read")

    def sibling(self, host: str, port: int) -> str:
        """Returns the URL of another server of the cluster. host: "" or "?" means this server's host."""
        own = urlsplit(self.url)
        host = own.hostname or "127.0.0.1" if host in ("", "?") else host
        return f"{own.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Closes idle connections."""
        while (connection := self._pop()) is not None:
            connection.disconnect()

    def _pop(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _ask(self, timeout_s: float, words: tuple[str, ...]) -> Any:
        """Sends a command over a new connection; returns the reply, which may be an error. Raises OSError."""
        try:
            return self._asked(timeout_s, words)
        except TimeoutError:
            raise
        except OSError:
            if (why := refusal(self.url, self._login.ca_file)) is None:
                raise
        raise OSError(f"the store at {self.place} refuses connections: {why[:MAX_ERROR]}")

    def _asked(self, timeout_s: float, words: tuple[str, ...]) -> Any:
        connection = self.connect(timeout_s)
        try:
            connection.send_command(*words)
            return connection.read_response()
        except ResponseError as e:
            if str(e).startswith(PROTECTED):
                raise OSError(str(e)) from None
            return e
        # MemoryError and TypeError are hiredis' for what is no reply of Redis
        except (RedisError, MemoryError, TypeError) as e:
            raise OSError(f"the store at {self.place} failed: {e}") from None
        finally:
            connection.disconnect()
