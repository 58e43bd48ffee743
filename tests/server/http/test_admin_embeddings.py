from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from safetensors.numpy import save
from starlette.applications import Starlette

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.tiers.updates.update import TableUpdate
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine
from polyrec.server.app.logs import LineFormatter
from polyrec.server.http.admin import Admin
from polyrec.server.http.admin_embeddings import (
    AuditPace,
    Embeddings,
    RowUpdate,
    embeddings_route,
    table_update,
)

TOKEN = {"authorization": "Bearer secret"}


@pytest.fixture
def stack(bundle: Bundle, tmp_path: Path) -> Iterator[TierStack]:
    rows = bundle.encoder.vocabularies["item"].rows
    placement = {"cuts": {"item": {"host": 10, "disk": rows - 10}}, "directory": tmp_path}
    stack = open_tiers(bundle, TierSettings.model_validate(placement))
    yield stack
    stack.close()


@pytest.fixture
def updates(client: Any, stack: TierStack) -> Any:
    """A client of an application with this endpoint alone."""
    engine = Engine()
    engine.access = Access(engine.metrics, admin_token="secret")
    route = embeddings_route(Admin(engine), Embeddings(lambda: {"table@cpu": stack}))
    return type(client)(client.runner, Starlette(routes=[route]))


def post(client: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = client.post("/v1/admin/embeddings", orjson.dumps(body), TOKEN)
    return answer.status_code, answer.json()


def row(stack: TierStack, bundle: Bundle, id: int) -> list[float]:
    rank = stack.tiers.layout.base["item"] + int(bundle.encoder.vocabularies["item"].rank_of_id[id])
    return TieredRows(stack).gather(torch.tensor([rank]))[0].tolist()


def test_the_audit_line_names_what_was_updated(updates: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = {"item": {"ids": [3], "rows": [[1.0] * 8]}}
    assert post(updates, {"tables": one, "key": "feed:7"})[0] == 200
    assert post(updates, {"tables": {"no such\n": one["item"]}, "key": "feed:8"})[0] == 422
    assert post(updates, {"tables": {"item": {"retract": ["no such"]}}})[0] == 200
    first, second, third = (LineFormatter().format(r) for r in caplog.records if r.name == "polyrec.audit")
    assert first.endswith(" key=feed:7 path=table@cpu tables=item rows=1")
    assert second.endswith(r" key=feed:8 path=table@cpu tables=no such\n")
    assert third.endswith(" path=table@cpu tables=item rows=0 retracted=0")


def test_a_feeds_updates_are_a_warning_a_minute() -> None:
    now_s = 0.0
    pace = AuditPace(lambda: now_s)
    warnings: list[tuple[float, str, dict[str, str]]] = []
    for _ in range(520):
        for client in ("feed", "other") if now_s < 1 else ("feed",):
            subject: dict[str, str] = {}
            if not pace.is_routine(client, subject):
                warnings.append((round(now_s), client, subject))
        now_s += 0.25
    assert warnings == [
        (0, "feed", {}),
        (0, "other", {}),
        (60, "feed", {"more_since_last_line": "239"}),
        (120, "feed", {"more_since_last_line": "239"}),
    ]


def test_accepted_updates_that_follow_are_level_info_and_refused_ones_warnings(
    updates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = {"tables": {"item": {"ids": [3], "rows": [[1.0] * 8]}}}
    for body in (one, one, {}):
        post(updates, body)
    levels = [record.levelname for record in caplog.records if record.name == "polyrec.audit"]
    assert levels == ["WARNING", "INFO", "WARNING"]


def test_rows_change_by_id_by_value_and_by_file(
    updates: Any, stack: TierStack, bundle: Bundle, tmp_path: Path
) -> None:
    ones = [1.0] * 8
    status, answer = post(updates, {"tables": {"item": {"ids": [3, 4], "rows": [ones, ones]}}})
    assert (status, answer) == (200, {"path": "table@cpu", "rows": 2})
    assert row(stack, bundle, 3) == row(stack, bundle, 4) == ones
    v = bundle.encoder.vocabularies["item"]
    assert v.values is not None
    value = v.values[7].as_py()
    status, _ = post(updates, {"tables": {"item": {"values": [value, None], "rows": [[2.0] * 8, [3.0] * 8]}}})
    assert status == 200
    assert row(stack, bundle, 7) == [2.0] * 8
    assert row(stack, bundle, v.missing_id) == [3.0] * 8
    file = tmp_path / "update.safetensors"
    file.write_bytes(encode_update({"item": TableUpdate(np.array([5]), np.full((1, 8), 4, np.float32))}))
    assert post(updates, {"path": "table@cpu", "file": str(file)})[0] == 200
    assert row(stack, bundle, 5) == [4.0] * 8
    os.truncate(file, 2**40)  # takes no disk, and would take all memory
    status, answer = post(updates, {"file": str(file)})
    assert status == 422
    assert "has 1099511627776 bytes; all rows that it could name take" in answer["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "either a `file` or `tables`"),
        ({"tables": {"item": {"ids": [1], "rows": []}}}, "1 rows are named, 0 are given"),
        ({"tables": {"item": {"rows": [[1.0]]}}}, "either by `ids` or by `values`"),
        ({"tables": {"item": {"ids": [1], "rows": [[1.0]]}}}, r"wants \(1, 8\) numbers"),
        ({"tables": {"item": {"ids": [1, 2], "rows": [[1.0], [1.0, 2.0]]}}}, "different lengths"),
        ({"tables": {"item": {"ids": [2**63], "rows": [[1.0] * 8]}}}, "is too large"),
        (
            {"tables": {"item": {"values": ["no such"], "rows": [[1.0] * 8]}}, "add": True},
            "0 of its 0 reserved",
        ),
        ({"tables": {"item": {"retract": ["a"]}}, "expires_s": 3}, "give `add` too"),
        ({"tables": {"item": {"values": ["no such"], "rows": [[1.0] * 8]}}}, "no value 'no such'"),
        ({"tables": {"cat": {"ids": [1], "rows": [[1.0] * 8]}}}, "no table 'cat'"),
        ({"path": "dhe@cpu", "file": "x"}, "path 'dhe@cpu' accepts no updates; paths that do: table@cpu"),
        ({"file": "/nothing"}, "no file of updates"),
        ({"file": "/dev/zero"}, "'zero' is not a file of updates: it is not a regular file"),
    ],
)
def test_an_invalid_update_is_422_with_the_reason(updates: Any, body: dict[str, Any], message: str) -> None:
    status, answer = post(updates, body)
    assert status == 422
    assert re.search(message, answer["error"])


def test_updates_need_the_token(updates: Any) -> None:
    page = "/v1/admin/embeddings"
    assert updates.post(page, b"{}", {}).status_code == 401
    assert updates.post(page, b"{}", {"authorization": "Bearer no"}).status_code == 401
    assert updates.post(page, b"{", TOKEN).status_code == 400


def test_bodies_that_are_slow_to_parse_are_rejected_before_parsing(updates: Any) -> None:
    """Parsing 64 MiB of `[],` kept all other clients waiting for seconds, in whatever thread."""
    document = b'{"tables": {"item": {"ids": [1], "rows": [' + b"[]," * 2**21 + b"[]]}}}"
    assert updates.post("/v1/admin/embeddings", document, TOKEN).status_code == 413
    binary = TOKEN | {"content-type": "application/octet-stream"}
    values = np.full(2**22 + 1, ord(" "), np.uint8)
    tables = {f"{i}.ids": np.zeros(0, np.int64) for i in range(20_000)}
    for arrays, offense in (
        ({"item.retract": values}, "a list of values of table 'item' has 4194305 bytes"),
        ({"item.retract": np.arange(2**19 + 1)}, "a list of values of table 'item' has 4194312 bytes"),
        (tables, "a header of more than 1048576 bytes"),
    ):
        answer = updates.post("/v1/admin/embeddings", save(arrays), binary)
        assert (answer.status_code, offense in answer.json()["error"]) == (422, True), answer.text


def test_a_file_of_updates_may_be_the_body(
    updates: Any, stack: TierStack, bundle: Bundle, tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    file.write_bytes(encode_update({"item": TableUpdate(np.array([5, 6]), np.full((2, 8), 4, np.float32))}))
    binary = TOKEN | {"content-type": "application/octet-stream"}

    def post_binary(query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        answer = updates.post(f"/v1/admin/embeddings{query}", body, binary)
        return answer.status_code, answer.json()

    status, answer = post_binary("?path=table@cpu&key=a", file.read_bytes())
    assert (status, answer) == (200, {"path": "table@cpu", "rows": 2, "repeated": False})
    assert row(stack, bundle, 5) == row(stack, bundle, 6) == [4.0] * 8
    assert post_binary("", file.read_bytes())[1] == {"path": "table@cpu", "rows": 2}
    for query, body, says in (
        ("", b"", "the body is not safetensors"),
        ("", b"{}", "the body is not safetensors"),
        ("", file.read_bytes()[:-1], "the body is not safetensors"),
        ("?path=other", file.read_bytes(), "path 'other' accepts no updates"),
        ("?nothing=1", file.read_bytes(), "nothing"),
        ("?key=", file.read_bytes(), "key"),
    ):
        status, answer = post_binary(query, body)
        assert status == 422, query
        assert says in answer["error"]
    file.write_bytes(encode_update({"item": TableUpdate(np.array([5]), np.full((1, 7), 4, np.float32))}))
    assert "wants (1, 8) numbers" in post_binary("", file.read_bytes())[1]["error"]


def test_an_update_may_give_no_rows_and_retract_some() -> None:
    update = table_update("t", RowUpdate(values=(), rows=(), retract=("a",)))
    assert update.values.shape == (0, 0)
    assert update.retracted == ("a",)
