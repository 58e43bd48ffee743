"""Tokens, rights and rates: identifies the client of a request and what it may do."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from polyrec.server.access.access import MAX_KNOWN_ADDRESSES, PREFIX, Access, Peer, TokenHolder, sender_of
from polyrec.server.access.rates import GUESS_BURST
from polyrec.server.access.tokens import Client, TokensError
from polyrec.server.errors import Forbidden, RateLimited, Unauthorized
from polyrec.server.http.options import RequestOptions
from polyrec.server.metrics.metrics import Metrics

SHOP, RANKING, ONCALL = "shop-token-0123456789", "ranking-token-0123456789", "on-call-token-0123456789"
HOURLY = "hourly-token-0123456789"
ADMIN_TOKEN = "the admin token of POLYREC_ADMIN_TOKEN"
CLIENTS = [
    {"name": "shop", "sha256": sha256(SHOP.encode()).hexdigest(), "requests_per_second": 5},
    {"name": "ranking", "token": RANKING, "rights": ["priority", "quality"]},
    {"name": "on-call", "token": ONCALL, "rights": ["admin"]},
    {"name": "hourly", "token": HOURLY, "requests_per_second": 1 / 3600},
]
HERE: Peer = ("10.0.0.1", 4711)
THERE: Peer = ("10.0.0.2", 4711)


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + token.encode())]


def write(file: Path, content: Any) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return file


def sent(token: str | None, **headers: str) -> dict[str, str]:
    own = {} if token is None else {"authorization": f"Bearer {token}"}
    return own | {name.replace("_", "-"): value for name, value in headers.items()}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens.json", {"clients": CLIENTS})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(file: Path, clock: Clock) -> Access:
    return Access(Metrics(), file, ADMIN_TOKEN, clock=clock)


def test_without_tokens_everybody_is_anonymous_whatever_they_bring() -> None:
    access = Access(Metrics(), admin_token=ADMIN_TOKEN)
    for headers in ([], bearer("another system's token"), [(b"authorization", b"Basic x")]):
        client = access.client(headers, None)
        assert (client.name, client.rights) == ("anonymous", frozenset())
    assert Access(Metrics(), open_rights=["priority"]).client([], HERE).rights == {"priority"}


def test_a_token_is_its_client_with_its_rights(access: Access) -> None:
    shop, ranking = (access.client(bearer(token), HERE) for token in (SHOP, RANKING))
    assert (shop.name, shop.rights) == ("shop", frozenset())
    assert (ranking.name, ranking.rights) == ("ranking", {"priority", "quality"})


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Basic " + SHOP.encode())],
        [(b"authorization", SHOP.encode())],
        bearer(SHOP + "x"),
        bearer(SHOP[:-1]),
        bearer(sha256(SHOP.encode()).hexdigest()),
        [(b"authorization", b"Bearer wrong"), *bearer(SHOP)],
    ],
)
def test_requests_without_a_valid_token_get_401(access: Access, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        access.client(headers, HERE)


def test_anonymous_clients_share_the_rest_of_the_limit(tmp_path: Path, clock: Clock) -> None:
    anonymous = {"rights": ["quality"], "requests_per_second": 2}
    file = write(tmp_path / "tokens.json", {"clients": CLIENTS, "anonymous": anonymous})
    access = Access(Metrics(), file, clock=clock)
    assert access.client([], HERE).rights == {"quality"}
    access.client([], THERE)
    with pytest.raises(RateLimited) as error:
        access.client([], HERE)
    assert error.value.retry_after_s == 1
    with pytest.raises(Unauthorized):
        access.client(bearer("wrong-token-0123456789"), HERE)
    clock.now_s += 0.5
    access.client([], HERE)


def test_a_rate_is_a_clients_own(access: Access, clock: Clock) -> None:
    for _ in range(5):
        access.client(bearer(SHOP), HERE)
    for peer in (HERE, THERE):
        with pytest.raises(RateLimited, match="client 'shop' is over its rate; retry in 1 s"):
            access.client(bearer(SHOP), peer)
    access.client(bearer(RANKING), HERE)
    clock.now_s += 1.0
    for _ in range(5):
        access.client(bearer(SHOP), HERE)


@pytest.mark.parametrize("anonymous", [None, {}])
def test_a_client_is_recognized_where_its_token_was_accepted_before(
    tmp_path: Path, anonymous: dict[str, Any] | None
) -> None:
    file = write(tmp_path / "tokens.json", {"clients": CLIENTS, "anonymous": anonymous})
    access = Access(Metrics(), file)
    assert not access.recognizes(bearer(RANKING), HERE)
    access.client(bearer(RANKING), HERE)
    assert access.recognizes(bearer(RANKING), HERE)
    assert not access.recognizes(bearer(RANKING), THERE)
    assert not access.recognizes(bearer("a wrong token"), HERE)
    assert access.recognizes([], THERE) == (anonymous is not None)
    assert Access(Metrics()).recognizes(bearer("a wrong token"), HERE)


def test_wrong_tokens_of_an_address_are_slowed_down_and_the_right_holder_is_not(
    access: Access, clock: Clock
) -> None:
    access.client(bearer(RANKING), HERE)  # used from here before
    looked_at = 0
    for i in range(9000):
        clock.now_s += 3.0 / 9000
        try:
            access.client(bearer(f"guess-{i:016}"), HERE)
        except Unauthorized:
            looked_at += 1
        except RateLimited:
            continue
    assert GUESS_BURST <= looked_at <= GUESS_BURST + 4
    access.client(bearer(RANKING), HERE)
    for token in (SHOP, RANKING):
        access.client(bearer(token), THERE)
    # Who guesses would learn from a difference: a right token that is new here waits as well, for its turn.
    with pytest.raises(RateLimited):
        access.client(bearer(SHOP), HERE)
    clock.now_s += 1.0
    access.client(bearer(SHOP), HERE)


def test_a_client_is_still_known_where_it_was_after_the_tokens_are_read_again(access: Access) -> None:
    access.client(bearer(RANKING), HERE)
    access.reload()
    for i in range(GUESS_BURST):
        with pytest.raises(Unauthorized):
            access.client(bearer(f"guess-{i:016}"), HERE)
    assert access.client(bearer(RANKING), HERE).name == "ranking"


def test_feedback_counts_against_a_clients_rate_and_administration_does_not(tmp_path: Path) -> None:
    both = CLIENTS[0] | {"rights": ["feedback", "admin"], "requests_per_second": 2}
    access = Access(Metrics(), write(tmp_path / "tokens.json", {"clients": [both]}), clock=Clock())
    for _ in range(4):
        access.authorized("admin", bearer(SHOP), HERE)
    access.authorized("feedback", bearer(SHOP), HERE)
    access.client(bearer(SHOP), HERE)
    with pytest.raises(RateLimited):
        access.authorized("feedback", bearer(SHOP), HERE)
    access.authorized("admin", bearer(SHOP), HERE)


def test_the_admin_token_is_guarded_by_the_same_count(access: Access, clock: Clock) -> None:
    for i in range(GUESS_BURST):
        with pytest.raises(Unauthorized):
            access.authorized("admin", bearer(f"guess-{i}"), HERE)
    for call in (partial(access.authorized, "admin"), access.client):
        with pytest.raises(RateLimited):
            call(bearer("one more guess"), HERE)
    assert access.authorized("admin", bearer(ADMIN_TOKEN), THERE).name == "POLYREC_ADMIN_TOKEN"


def test_all_of_a_digest_is_compared_also_if_it_begins_as_that_of_a_client(tmp_path: Path) -> None:
    digest = sha256(SHOP.encode()).hexdigest()
    alike = {"name": "alike", "sha256": digest[: 2 * PREFIX] + "0" * (64 - 2 * PREFIX)}
    file = write(tmp_path / "tokens.json", {"clients": [alike]})
    access = Access(Metrics(), file)
    with pytest.raises(Unauthorized, match="the token is not valid"):
        access.client(bearer(SHOP), HERE)


def test_a_holder_remembers_its_latest_addresses_only() -> None:
    holder = TokenHolder(Client("shop", frozenset()))
    for i in range(3 * MAX_KNOWN_ADDRESSES):
        holder.remember(str(i))
    assert list(holder.addresses) == [str(i) for i in range(2 * MAX_KNOWN_ADDRESSES, 3 * MAX_KNOWN_ADDRESSES)]


def test_rights_to_administer(access: Access) -> None:
    assert access.authorized("admin", bearer(ONCALL), HERE).name == "on-call"
    assert access.authorized("admin", bearer(ADMIN_TOKEN), HERE).name == "POLYREC_ADMIN_TOKEN"
    with pytest.raises(Forbidden, match="lacks the right 'admin'"):
        access.authorized("admin", bearer(RANKING), HERE)
    with pytest.raises(Unauthorized):
        access.authorized("admin", [], HERE)


def test_refusals_are_counted_and_logged_once_a_second(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    access = Access(metrics, file, clock=clock)
    for _ in range(50):
        with pytest.raises(Unauthorized):
            access.client([], HERE)
    clock.now_s += 1.0
    with pytest.raises(Unauthorized):
        access.client(bearer("wrong-token-0123456789"), THERE)
    shop = access.client(bearer(SHOP), HERE)
    with pytest.raises(Forbidden):
        access.allowed(RequestOptions(priority=1), shop, 1.0, HERE)
    assert access.allowed(RequestOptions(budget_s=9.0), shop, 1.0, HERE).budget_s == 1.0
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "401 for a client from 10.0.0.1: send a token as 'Authorization: Bearer TOKEN'"
    assert (
        said[1]
        == "401 for a client from 10.0.0.2: the token is not valid (49 more like it since the last line)"
    )
    assert said[2].startswith("403 for client 'shop' from 10.0.0.1: priority 1 (header X-Polyrec-Priority")
    assert len(said) == 3
    counted = {labels[0]: child.value for labels, child in metrics.access_refused.children.items()}
    assert counted == {"unauthorized": 51, "guessing": 0, "forbidden": 1, "limited": 0}
    assert metrics.capped_budgets.only.value == 1


def test_tokens_are_read_again_and_a_broken_file_changes_nothing(
    access: Access, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, {"clients": [CLIENTS[0], {"name": "new", "token": "new-token-0123456789"}]})
    access.reload()
    assert access.client(bearer("new-token-0123456789"), HERE).name == "new"
    with pytest.raises(Unauthorized):
        access.client(bearer(RANKING), HERE)
    for broken in (b"{", {"clients": [{"name": "thief", "token": ADMIN_TOKEN}]}, {"clients": [{}]}):
        write(file, broken)
        caplog.clear()
        access.reload()
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith("tokens were not reloaded: ")
        assert access.client(bearer("new-token-0123456789"), HERE).name == "new"
    file.unlink()
    access.reload()
    assert access.client(bearer(SHOP), HERE).name == "shop"


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(TokensError):
        Access(Metrics(), tmp_path / "none.json")


def test_a_client_with_the_token_of_the_variable_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """`polyrec rollout` reads the same variable, so the shell of an administrator in the file has it set."""
    file = tmp_path / "tokens.json"
    file.write_bytes(orjson.dumps({"clients": [{"name": "ops", "token": ADMIN_TOKEN, "rights": ["admin"]}]}))
    with pytest.raises(TokensError, match="'ops' has the token of POLYREC_ADMIN_TOKEN: unset the variable"):
        Access(Metrics(), file, admin_token=ADMIN_TOKEN)


def test_a_sender_is_the_client_of_a_token_or_else_a_network() -> None:
    shop, anyone = Client("shop", frozenset()), Client("anonymous", frozenset())
    assert sender_of(shop, HERE) == sender_of(shop, THERE) == b"shop"
    assert sender_of(anyone, HERE) == sender_of(anyone, ("10.0.0.1", 4712)) != sender_of(anyone, THERE)
    assert sender_of(anyone, ("2001:db8::1", 1)) == sender_of(anyone, ("2001:db8::2", 1))
    assert sender_of(anyone, None) == b""
