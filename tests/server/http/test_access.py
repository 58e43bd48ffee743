"""Tokens, rights and rates: alone, in an application, and in a real server."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.tokens import Client, TokensError
from polyrec.server.child import ServerProcess, start
from polyrec.server.errors import Forbidden, RateLimited, Unauthorized
from polyrec.server.http.access import MAX_KNOWN_ADDRESSES, Access, Peer, TokenHolder, sender_of
from polyrec.server.http.admin import Admin
from polyrec.server.http.app import create_app
from polyrec.server.http.options import RequestOptions
from polyrec.server.http.rates import GUESS_BURST
from polyrec.server.metrics.metrics import Metrics

SHOP, RANKING, ONCALL = "shop-token-0123456789", "ranking-token-0123456789", "on-call-token-0123456789"
HOURLY = "hourly-token-0123456789"
ADMIN_TOKEN = "the admin token of POLYREC_ADMIN_TOKEN"
HERE: Peer = ("10.0.0.1", 4711)
THERE: Peer = ("10.0.0.2", 4711)
BODY = b'{"instances": [{}]}'
CLIENTS = [
    {"name": "shop", "sha256": sha256(SHOP.encode()).hexdigest(), "requests_per_second": 5},
    {"name": "ranking", "token": RANKING, "rights": ["priority", "quality"]},
    {"name": "on-call", "token": ONCALL, "rights": ["admin"]},
    {"name": "hourly", "token": HOURLY, "requests_per_second": 1 / 3600},
]


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", b"Bearer " + token.encode())]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens.json", {"clients": CLIENTS})


@pytest.fixture
def access(file: Path, clock: Clock) -> Access:
    return Access(Metrics(), file, ADMIN_TOKEN, clock=clock)


def write(file: Path, content: Any) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return file


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


def test_anonymous_clients_share_what_the_file_leaves_them(tmp_path: Path, clock: Clock) -> None:
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


def test_the_admin_token_is_guarded_by_the_same_count(access: Access, clock: Clock) -> None:
    for i in range(GUESS_BURST):
        with pytest.raises(Unauthorized):
            access.authorized("admin", bearer(f"guess-{i}"), HERE)
    for call in (partial(access.authorized, "admin"), access.client):
        with pytest.raises(RateLimited):
            call(bearer("one more guess"), HERE)
    assert access.authorized("admin", bearer(ADMIN_TOKEN), THERE).name == "POLYREC_ADMIN_TOKEN"


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
        assert caplog.records[0].getMessage().startswith("the tokens are as before: ")
        assert access.client(bearer("new-token-0123456789"), HERE).name == "new"
    file.unlink()
    access.reload()
    assert access.client(bearer(SHOP), HERE).name == "shop"


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(TokensError):
        Access(Metrics(), tmp_path / "none.json")


@pytest.fixture
def guarded(client: Any, file: Path, plan: Plan) -> Iterator[Any]:
    """A client of an application that asks for tokens, and cuts budgets to 80 s."""
    engine = Engine()
    limits = plan.limits.model_copy(update={"max_budget_ms": 80_000.0})
    engine.load(plan.model_copy(update={"limits": limits}))
    engine.access = Access(engine.metrics, file, ADMIN_TOKEN)
    yield type(client)(client.runner, create_app(engine, Admin(engine)))
    engine.close()


def sent(token: str | None, **headers: str) -> dict[str, str]:
    own = {} if token is None else {"authorization": f"Bearer {token}"}
    return own | {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.mark.parametrize("page", ["/v1/predict", "/v1/rank", "/v2/models/dlrm/infer"])
def test_every_prediction_needs_a_token_before_its_body_is_read(guarded: Any, page: str) -> None:
    for token in (None, "wrong-token-0123456789"):
        answer = guarded.post(page, b"{" * 100, sent(token))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert guarded.post(page, b"{" * 100, sent(RANKING)).status_code == 400


def test_pages_that_predict_nothing_need_no_token(guarded: Any) -> None:
    for page in ("/livez", "/readyz", "/metrics", "/v1/plan", "/v2/models/dlrm", "/v1/route?rows=2"):
        assert guarded.send("GET", page).status_code == 200


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        (SHOP, {}, 200),
        (SHOP, {"x_polyrec_priority": "0", "x_polyrec_quality": "any"}, 200),
        (SHOP, {"x_polyrec_priority": "1"}, 403),
        (SHOP, {"x_polyrec_quality": "required"}, 403),
        (RANKING, {"x_polyrec_priority": "1", "x_polyrec_quality": "required"}, 200),
        (ONCALL, {"x_polyrec_priority": "1"}, 403),
        (ADMIN_TOKEN, {}, 200),
    ],
)
def test_headers_ask_for_what_the_token_allows(
    guarded: Any, token: str, headers: dict[str, str], status: int
) -> None:
    answer = guarded.post("/v1/predict", BODY, sent(token, **headers))
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("token", "parameters", "status"),
    [
        (SHOP, {}, 200),
        (SHOP, {"priority": 0, "quality": "any", "timeout": 0}, 200),
        (SHOP, {"priority": 1}, 403),
        (SHOP, {"quality": "required"}, 403),
        (RANKING, {"priority": 1, "quality": "required"}, 200),
    ],
)
def test_parameters_of_a_body_are_judged_like_headers(
    guarded: Any, tensors: Any, request_: Any, token: str, parameters: dict[str, Any], status: int
) -> None:
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
            "data": array.ravel().tolist(),
        }
        for name, array in tensors(request_).items()
    ]
    body = orjson.dumps({"inputs": inputs, "parameters": parameters})
    answer = guarded.post("/v2/models/dlrm/infer", body, sent(token))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert f"parameter '{next(iter(parameters))}'" in answer.json()["error"]


def test_a_budget_beyond_the_cap_is_cut_and_counted(guarded: Any) -> None:
    for budget_ms, capped in (("79999", 0), ("3600000", 1)):
        headers = sent(RANKING, x_latency_budget_ms=budget_ms)
        assert guarded.post("/v1/predict", BODY, headers).status_code == 200
        assert guarded.metric("polyrec_capped_budgets_total") == capped
    assert guarded.send("GET", "/v1/route?budget_ms=3600000").json()["budget_s"] == 80.0


def test_an_act_of_administration_leaves_one_line_without_secrets(
    guarded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for token in (ONCALL, ADMIN_TOKEN, RANKING, None):
            guarded.post("/v1/admin/routing", b"{}", sent(token))
        guarded.post("/v1/admin/reload", b'{"plan": "/no/such/plan.json"}', sent(ONCALL))
    said = [r.getMessage() for r in caplog.records if r.name == "polyrec.audit"]
    assert said == [
        "routing by 'on-call' from 127.0.0.1: 200",
        "routing by 'POLYREC_ADMIN_TOKEN' from 127.0.0.1: 200",
        "reload by 'on-call' from 127.0.0.1: 422: the plan is not opened, the old one still serves: "
        "no plan file 'plan.json'",
    ]
    assert not [line for line in caplog.messages if ADMIN_TOKEN in line or ONCALL in line]


@dataclass(frozen=True)
class Guarded:
    """A real server that asks for tokens, its file, and what it writes to standard error."""

    child: ServerProcess
    file: Path
    log: Path

    def ask(self, http: httpx.Client, token: str | None, **headers: str) -> httpx.Response:
        return http.post("/v1/predict", content=BODY, headers=sent(token, **headers))


@pytest.fixture
def served(bundle_dir: Path, file: Path, tmp_path: Path) -> Iterator[Guarded]:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000, "tokens": file}
    log = tmp_path / "log"
    with log.open("w") as stderr, start(settings | {"admin_token": ADMIN_TOKEN}, stderr) as child:
        yield Guarded(child, file, log)


def test_a_real_server_answers_401_403_and_429(served: Guarded) -> None:
    with httpx.Client(base_url=served.child.url, timeout=30) as http:
        assert served.ask(http, None).status_code == 401
        assert served.ask(http, SHOP, x_polyrec_priority="1").status_code == 403
        assert served.ask(http, RANKING, x_polyrec_priority="1").status_code == 200
        assert served.ask(http, HOURLY).status_code == 200
        limited = served.ask(http, HOURLY)
        assert limited.status_code == 429
        assert int(limited.headers["retry-after"]) > 3000
        assert limited.json()["error"].startswith("client 'hourly' is over its rate; retry in 3")
        guesses = [served.ask(http, f"guess-{i:016}").status_code for i in range(3 * GUESS_BURST)]
        assert guesses[:GUESS_BURST] == [401] * GUESS_BURST
        assert 429 in guesses
        assert served.ask(http, RANKING).status_code == 200
        found = MetricSamples(http.get("/metrics").text)
        assert found.total("polyrec_access_refused_total") == 3 + len(guesses)
        assert found.total("polyrec_access_refused_total", reason="limited") == 1
    said = served.log.read_text()
    assert "429 for client 'hourly' from 127.0.0.1" in said
    assert "guess-0" not in said
    assert RANKING not in said


def test_a_real_server_reads_its_tokens_again_on_sighup(served: Guarded) -> None:
    with httpx.Client(base_url=served.child.url, timeout=30) as http:
        assert served.ask(http, RANKING).status_code == 200
        write(served.file, b"{")
        served.child.process.send_signal(signal.SIGHUP)
        while "the tokens are as before" not in served.log.read_text():
            assert served.child.process.poll() is None
        assert served.ask(http, RANKING).status_code == 200
        write(served.file, {"clients": [{"name": "other", "token": ONCALL}]})
        served.child.process.send_signal(signal.SIGHUP)
        while served.ask(http, RANKING).status_code == 200:
            assert served.child.process.poll() is None
        assert served.ask(http, RANKING).status_code == 401
        assert served.ask(http, ONCALL).status_code == 200


def test_a_sender_is_the_client_of_a_token_or_else_a_network() -> None:
    shop, anyone = Client("shop", frozenset()), Client("anonymous", frozenset())
    assert sender_of(shop, HERE) == sender_of(shop, THERE) == b"shop"
    assert sender_of(anyone, HERE) == sender_of(anyone, ("10.0.0.1", 4712)) != sender_of(anyone, THERE)
    assert sender_of(anyone, ("2001:db8::1", 1)) == sender_of(anyone, ("2001:db8::2", 1))
    assert sender_of(anyone, None) == b""
