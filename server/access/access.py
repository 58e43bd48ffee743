"""Authenticates clients by their tokens, and enforces their rights and request rates.

`Access` maps a request's headers and peer address to a `Client`, or raises an error with its HTTP status: 401
for a missing or invalid token, 403 for a missing right, 429 above the client's rate or after too many wrong
tokens. HTTP, gRPC and the admin calls all use it.

Without a tokens file all requests come from one anonymous client, and `Authorization` headers are ignored, as
they may be meant for a proxy. Admin calls always need a token with the right `admin`, which the token in
POLYREC_ADMIN_TOKEN has.

Tokens are stored and compared as SHA-256 digests. Wrong tokens are rate-limited by client address. A valid
token is exempt from that limit at addresses where it was used before. At a new address the limit applies to
it too, so that the answer does not reveal to a guesser whether a guess was right.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from polyrec.server.access.rates import GuessLimiter, TokenBucket, network_of
from polyrec.server.access.tokens import (
    ADMIN_VARIABLE,
    ANONYMOUS,
    Allowance,
    Client,
    Right,
    Tokens,
    TokensError,
    digest_of,
    load_tokens,
)
from polyrec.server.errors import Forbidden, RateLimited, RequestError, Unauthorized
from polyrec.server.http.options import RequestOptions
from polyrec.server.metrics.metrics import ACCESS_REASONS, Metrics

log = logging.getLogger("polyrec.access")

NO_TOKEN = {
    "admin": f"this server has no admin token; start it with {ADMIN_VARIABLE} set",
    "feedback": "no client has the right 'feedback'; give it to one in the file of --tokens",
}
"""Error message for a call that no existing token allows, by right."""
Peer = tuple[str, int] | None
"""Client address and port as in an ASGI scope; None on a Unix socket."""
MAX_KNOWN_ADDRESSES = 256
"""Maximum addresses remembered for each token."""
PREFIX = 8
"""Bytes of the digest used as the lookup key. Timing could reveal only these bytes of a hash, whose preimage
stays unknown; the whole digest is then compared in constant time."""


@dataclass(slots=True, eq=False)
class TokenHolder:
    """A client with its token's state. digest: SHA-256 of the token. addresses: where it was used from."""

    client: Client
    bucket: TokenBucket | None = None
    digest: bytes = b""
    addresses: dict[str, None] = field(default_factory=dict)

    def remember(self, address: str) -> None:
        """Adds an address, and drops the oldest beyond MAX_KNOWN_ADDRESSES."""
        if len(self.addresses) >= MAX_KNOWN_ADDRESSES:
            del self.addresses[next(iter(self.addresses))]
        self.addresses[address] = None


class Access:
    """The clients of one server. Raises TokensError.

    file: the tokens file; None if predictions need no token.
    open_rights: rights that every client has.
    clock: returns seconds.
    """

    def __init__(
        self,
        metrics: Metrics,
        file: Path | None = None,
        admin_token: str | None = None,
        open_rights: Iterable[Right] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rejected = {reason: metrics.access_refused.labels(reason) for reason in ACCESS_REASONS}
        self._capped = metrics.capped_budgets.only
        self._file = file
        self._clock = clock
        self._open: frozenset[Right] = frozenset(open_rights)
        self._guesses = GuessLimiter()
        self._logged: dict[str, tuple[float, int]] = {}
        self._admin = None
        if admin_token is not None:
            client = Client(ADMIN_VARIABLE, self._open | {"admin"})
            self._admin = TokenHolder(client, digest=digest_of(admin_token.encode()))
        self._holders: dict[bytes, TokenHolder] = {}
        self._anonymous: TokenHolder | None = TokenHolder(Client(ANONYMOUS, self._open))
        self._free = self._anonymous.client
        self.needs_tokens = file is not None
        """Whether predictions are restricted to clients in the tokens file."""
        self._install(Tokens(clients=()) if file is None else load_tokens(file))

    def reload(self) -> None:
        """Reloads the tokens file. If it is invalid, logs one line and keeps the old tokens."""
        if self._file is None:
            return
        try:
            tokens = load_tokens(self._file)
            self._install(tokens)
        except TokensError as e:
            log.warning("tokens were not reloaded: %s", e)
        else:
            log.warning("tokens of %d clients are in force", len(tokens.clients))

    def client(self, headers: Iterable[tuple[bytes, bytes]], peer: Peer) -> Client:
        """Returns the client of a prediction request, which counts against its rate.

        headers: with lower-case names.
        Raises Unauthorized or RateLimited.
        """
        if not self.needs_tokens:
            return self._free
        address = peer[0] if peer else ""
        token = _bearer(headers)
        holder = self._anonymous if token is None else self._holder(token, address)
        if holder is None:
            raise self._count_rejection(
                "unauthorized", Unauthorized("send a token as 'Authorization: Bearer TOKEN'"), address
            )
        self._take(holder, address)
        return holder.client

    def recognizes(self, headers: Iterable[tuple[bytes, bytes]], peer: Peer) -> bool:
        """Whether a prediction request has an accepted token and an address that used it before.

        Counts nothing, and reveals nothing to an address that guesses tokens: for all others call `client`.
        """
        if not self.needs_tokens:
            return True
        token = _bearer(headers)
        if token is None:
            return self._anonymous is not None
        holder = self._find(token)
        return holder is not None and (peer[0] if peer else "") in holder.addresses

    def authorized(
        self, right: Literal["admin", "feedback"], headers: Iterable[tuple[bytes, bytes]], peer: Peer
    ) -> Client:
        """Returns the client of a call that always requires a token with a certain right.

        Calls that need `feedback` count against the client's rate. Raises Unauthorized, Forbidden or
        RateLimited.
        """
        if not any(right in holder.client.rights for holder in self._holders.values()):
            raise Forbidden(NO_TOKEN[right])
        address = peer[0] if peer else ""
        token = _bearer(headers)
        if token is None:
            missing = Unauthorized(f"send a token with the right '{right}' as 'Authorization: Bearer TOKEN'")
            raise self._count_rejection("unauthorized", missing, address)
        holder = self._holder(token, address)
        client = holder.client
        if right not in client.rights:
            error = Forbidden(f"this token lacks the right '{right}'")
            raise self._count_rejection("forbidden", error, address, client.name)
        if right == "feedback":
            self._take(holder, address)
        return client

    def _take(self, holder: TokenHolder, address: str) -> None:
        """Counts a request against its client's rate. Raises RateLimited."""
        if holder.bucket is not None and (wait_s := holder.bucket.take(self._clock())):
            name = holder.client.name
            error = RateLimited(f"client '{name}' is over its rate", math.ceil(wait_s))
            raise self._count_rejection("limited", error, address, name)

    def allowed(
        self, options: RequestOptions, client: Client, max_budget_s: float, peer: Peer
    ) -> RequestOptions:
        """Applies `RequestOptions.allowed`, counts capped budgets, and counts and logs rejections.

        Raises Forbidden.
        """
        try:
            allowed = options.allowed(client, max_budget_s)
        except Forbidden as e:
            raise self._count_rejection("forbidden", e, peer[0] if peer else "", client.name) from None
        if allowed is not options:
            self._capped.inc()
        return allowed

    def _install(self, tokens: Tokens) -> None:
        """Replaces the tokens. A token that was there before keeps its remembered addresses."""
        now_s = self._clock()
        holders = {} if self._admin is None else {self._admin.digest[:PREFIX]: self._admin}
        for entry in tokens.clients:
            digest = entry.digest
            if digest[:PREFIX] in holders:
                raise TokensError(
                    f"client '{entry.name}' has the token of {ADMIN_VARIABLE}: unset the variable here, or "
                    "give the client another one"
                )
            old = self._holders.get(digest[:PREFIX])
            holder = TokenHolder(self._named(entry.name, entry), _bucket(entry, now_s), digest)
            if old is not None and old.digest == digest:
                holder.addresses = old.addresses
            holders[digest[:PREFIX]] = holder
        self._holders = holders
        anonymous = tokens.anonymous
        self._anonymous = None
        if anonymous is not None:
            self._anonymous = TokenHolder(self._named(ANONYMOUS, anonymous), _bucket(anonymous, now_s))

    def _named(self, name: str, allowed: Allowance) -> Client:
        return Client(name, self._open.union(allowed.rights))

    def _find(self, token: bytes) -> TokenHolder | None:
        digest = digest_of(token)
        holder = self._holders.get(digest[:PREFIX])
        return holder if holder is not None and hmac.compare_digest(holder.digest, digest) else None

    def _holder(self, token: bytes, address: str) -> TokenHolder:
        """Returns the holder of a token. Raises Unauthorized or RateLimited."""
        holder = self._find(token)
        if holder is not None and address in holder.addresses:
            return holder
        now_s = self._clock()
        if wait_s := self._guesses.wait_s(address, now_s):
            error = RateLimited("too many wrong tokens came from your address", math.ceil(wait_s))
            raise self._count_rejection("guessing", error, address)
        if holder is None:
            self._guesses.wrong(address, now_s)
            raise self._count_rejection("unauthorized", Unauthorized("the token is not valid"), address)
        holder.remember(address)
        return holder

    def _count_rejection(
        self, reason: str, error: RequestError, address: str, name: str = ""
    ) -> RequestError:
        """Counts and logs a rejection, at most one line per second and reason; returns `error`."""
        self._rejected[reason].inc()
        now_s = self._clock()
        last_s, suppressed = self._logged.get(reason, (-math.inf, 0))
        if now_s - last_s < 1:
            self._logged[reason] = last_s, suppressed + 1
        else:
            self._logged[reason] = now_s, 0
            who = f"client '{name}' from {address}" if name else f"a client from {address}"
            more = f" ({suppressed} more like it since the last line)" if suppressed else ""
            log.warning("%d for %s: %s%s", int(error.status), who, error, more)
        return error


def sender_of(client: Client, peer: Peer) -> bytes:
    """Returns a key that identifies a request's sender: the client's name, or the network if anonymous."""
    if client.name != ANONYMOUS:
        return client.name.encode()
    return b"" if peer is None else network_of(peer[0]).encode()


def _bucket(allowed: Allowance, now_s: float) -> TokenBucket | None:
    rate = allowed.requests_per_second
    return None if rate is None else TokenBucket(rate, rate, now_s)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the bearer token in the first Authorization header, None if it is absent or not Bearer."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            token = token.strip()
            return token if token and scheme.lower() == b"bearer" else None
    return None
