from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from polyrec.server.access.tokens import TokensError, load_tokens

TOKEN = "0123456789abcdef"


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "tokens.json"
    file.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return file


def test_a_token_and_its_hash_are_the_same_client(tmp_path: Path) -> None:
    digest = sha256(TOKEN.encode()).hexdigest()
    for secret in ({"token": TOKEN}, {"sha256": digest}, {"sha256": digest.upper()}):
        entry = {"name": "shop", "rights": ["quality"], "requests_per_second": 5, **secret}
        (client,) = load_tokens(written(tmp_path, {"clients": [entry]})).clients
        assert client.digest == sha256(TOKEN.encode()).digest()
        assert (client.name, client.rights, client.requests_per_second) == ("shop", ("quality",), 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"clients": [', "is not JSON"),
        (b"[]", "must be an object"),
        ({}, "clients: Field required"),
        ({"clients": {"a": {}}}, "clients: Input should be a list"),
        ({"clients": [], "anonymus": {}}, "anonymus"),
        ({"clients": [], TOKEN: "shop"}, "an unknown key of 16 characters"),
        ({"clients": [{TOKEN: "shop"}]}, "an unknown key of 16 characters"),
        ({"clients": [], "anonymous": {"requests_per_seconds": 1}}, "an unknown key of 20 characters"),
        ({"clients": [{"name": "a"}]}, "needs either 'token' or 'sha256'"),
        ({"clients": [{"name": "a", "token": TOKEN, "sha256": "0" * 64}]}, "needs either"),
        ({"clients": [{"name": "a", "token": TOKEN[1:]}]}, "less than 16 characters"),
        ({"clients": [{"name": "a", "sha256": TOKEN}]}, "clients.0.sha256"),
        ({"clients": [{"name": TOKEN, "token": "shop", "rate": 1}]}, "clients.0"),  # in each other's place
        ({"clients": [{"name": "a\nb", "token": TOKEN}]}, "clients.0.name"),
        ({"clients": [{"name": "anonymous", "token": TOKEN}]}, "the name 'anonymous' is taken"),
        ({"clients": [{"name": "a", "token": TOKEN, "rights": ["root"]}]}, "clients.0.rights.0"),
        ({"clients": [{"name": "a", "token": TOKEN, "requests_per_second": 0}]}, "requests_per_second"),
        ({"clients": [], "anonymous": {"rights": ["admin"]}}, "anonymous.rights.0"),
        ({"clients": [{"name": "a", "token": TOKEN}] * 2}, "client 'a' is listed twice"),
        (
            {"clients": [{"name": n, "token": TOKEN} for n in "ab"]},
            "clients 'a' and 'b' have the same token",
        ),
    ],
)
def test_a_mistake_is_one_line_without_the_secret(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(TokensError) as error:
        load_tokens(written(tmp_path, content))
    message = str(error.value)
    assert says in message
    assert "\n" not in message
    assert TOKEN not in message
    assert TOKEN[1:] not in message
    assert str(tmp_path) not in message


def test_a_file_that_is_not_there_or_no_file_is_one_line(tmp_path: Path) -> None:
    for file, says in (
        (tmp_path / "none.json", "there is no tokens file 'none.json'"),
        (tmp_path, "regular"),
    ):
        with pytest.raises(TokensError, match=says):
            load_tokens(file)


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    tokens = load_tokens(written(tmp_path, {"clients": [{"name": "a", "token": TOKEN}]}))
    assert TOKEN not in repr(tokens) + str(tokens.model_dump())
