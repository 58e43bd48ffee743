"""Login to a real Redis by TLS and as a user of its access list, and what is shown of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import SecretStr

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.tiers.remote.login import Login, login_of, place, without_login
from polyrec.models.tiers.remote.remote import RemoteTier
from polyrec.models.tiers.remote.server import Server
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.tier_settings import RemoteStore
from tests.models.tiers.redis_server import RedisServer
from tests.models.tiers.waiting import wait_until
from tests.models.tiers.worlds import encoder_of, flat_weight, world

PASSWORD = "p@ss/w:rd s3cret"
SIZES = {"a": 3000, "table_b": 50}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A TLS server that accepts only the user `rows`."""
    folder = tmp_path_factory.mktemp("redis")
    access = folder / "users.acl"
    rights = "~polyrec:* +get +mget +set +ping +info"
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    access.write_text(f"user default off\nuser rows on #{digest} {rights}\n")
    server = RedisServer(folder, "--aclfile", str(access), tls=True)
    yield server
    server.kill()


def named(server: RedisServer, **changed: object) -> RemoteStore:
    url = server.url.replace("://", "://rows@")
    told = {"url": url, "ca_file": server.ca_file, "password": SecretStr(PASSWORD), "timeout_ms": 5000}
    return RemoteStore.model_validate(told | changed)


@pytest.mark.parametrize("way", ["settings", "file", "url"])
def test_rows_come_from_a_store_behind_tls_and_a_password(
    guarded: RedisServer, tmp_path: Path, way: str
) -> None:
    told: dict[str, object] = {"ca_file": guarded.ca_file, "timeout_ms": 5000, "fill": True}
    told["url"] = guarded.url.replace("://", "://rows@")
    if way == "settings":
        told["password"] = SecretStr(PASSWORD)
    elif way == "file":
        told["password_file"] = tmp_path / "password"
        (tmp_path / "password").write_text(PASSWORD + "\n")
    else:
        told["url"] = guarded.url.replace("://", "://rows:p%40ss%2Fw%3Ard%20s3cret@")
    encoder = encoder_of(SIZES)
    stack = world(encoder, tmp_path, (0.1, 0.2, 0.3), remote=told)
    rows, flat = TieredRows(stack), flat_weight(encoder)
    random = np.random.default_rng(0)
    for count in (1, 7, 2000):  # more than one record of TLS, and less
        index = torch.from_numpy(random.integers(0, sum(SIZES.values()), count))
        assert torch.equal(rows.gather(index), flat[index])
    assert rows.take_fallbacks() == 0
    stack.close()


def test_answers_of_any_length_are_read_to_their_end_over_tls(guarded: RedisServer) -> None:
    login = login_of(named(guarded))
    for size in (1, 1000, 16_384, 100_000):
        tier = RemoteTier(guarded.url, ["t"], np.zeros((1, size), np.uint8), 5.0, "polyrec:", login)
        ids, zeros = np.arange(9), np.zeros(9, np.int64)
        values = np.random.default_rng(size).integers(0, 255, (9, size), np.uint8)
        tier.write(zeros, ids, values)
        got, found = tier.receive(tier.send(zeros, ids))
        assert found.all()
        np.testing.assert_array_equal(got, values)
        tier.close()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"password": SecretStr("wrong s3cret")}, r"the store at rediss://127\.0\.0\.1:\d+ refused AUTH"),
        ({"password": None}, "refused AUTH"),
        ({"ca_file": None}, "certificate verify failed"),
    ],
)
def test_a_rejected_login_names_the_server_alone(
    guarded: RedisServer, changed: dict[str, object], why: str
) -> None:
    store = named(guarded, **changed)
    with pytest.raises(OSError, match=why) as caught:
        Server(without_login(store.url), login_of(store)).connect(5.0)
    assert "s3cret" not in str(caught.value)


def test_a_store_that_answers_again_is_entered_again(guarded: RedisServer) -> None:
    tier = RemoteTier(
        guarded.url, ["t"], np.zeros((1, 4), np.uint8), 5.0, "polyrec:", login_of(named(guarded))
    )
    ids, zeros = np.arange(3), np.zeros(3, np.int64)
    guarded.kill()
    assert not tier.receive(tier.send(zeros, ids))[1].any()
    guarded.start()
    wait_until(lambda: tier.up, "the store was not found again")
    tier.write(zeros, ids, np.ones((3, 4), np.uint8))
    assert tier.receive(tier.send(zeros, ids))[1].all()
    tier.close()


def test_an_unreadable_file_is_reported_without_its_folder(tmp_path: Path) -> None:
    for changed in ({"password_file": tmp_path / "none"}, {"ca_file": tmp_path / "none"}):
        with pytest.raises(RuntimeUnavailable, match="file cannot be read: No such file") as caught:
            login_of(RemoteStore.model_validate({"url": "rediss://host"} | changed))
        assert str(tmp_path) not in str(caught.value)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(RuntimeUnavailable, match="it is empty"):
        login_of(RemoteStore(url="rediss://host", password_file=tmp_path / "empty"))


def test_a_wrong_password_is_not_quoted_by_an_old_server(tmp_path: Path) -> None:
    """One without passwords may repeat what it was sent."""
    server = RedisServer(tmp_path)
    try:
        with pytest.raises(OSError, match="refused AUTH") as caught:
            Server(server.url, Login(password="s3cret")).connect(5.0)
        assert "s3cret" not in str(caught.value)
    finally:
        server.kill()


def test_urls_are_shown_without_secrets() -> None:
    assert without_login("rediss://u:p@h:1/2") == "rediss://h:1/2"
    assert without_login("unix:///a/b.sock") == "unix:///a/b.sock"
    assert place("unix:///a/b.sock") == "unix://b.sock"
    assert place("redis://:a@b@[fd00::1]") == "redis://[fd00::1]"
    assert "s3cret" not in repr(Login.from_url("redis://u:s3cret@h"))
