"""Both clients against real servers, and the model in process against what a server answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import polyrec
from polyrec.model import BATCH_ROWS
from polyrec.models.bundle.bundle import Bundle

PATIENT = {"default_budget_ms": 60_000}


@pytest.fixture(scope="module")
def table(clicks: Path, bundle: Bundle) -> pa.Table:
    """Rows of some requests, with the column that tells them apart."""
    schema = bundle.manifest.schema_
    return (
        pq.read_table(clicks)
        .slice(5400, 200)
        .select([*schema.context.names, *schema.candidate.names, "request_id"])
    )


@pytest.fixture(scope="module")
def request_(table: pa.Table, bundle: Bundle) -> tuple[dict[str, Any], pa.Table]:
    """Context and candidates of the first request."""
    schema = bundle.manifest.schema_
    rows = table.filter(pa.compute.equal(table["request_id"], table["request_id"][0]))
    return rows.select(schema.context.names).to_pylist()[0], rows.select(schema.candidate.names)


@pytest.fixture(scope="module")
def server(bundle_dir: Path) -> Iterator[polyrec.RunningServer]:
    with polyrec.serve(bundle_dir, **PATIENT) as server:
        yield server


@pytest.fixture(scope="module")
def model(bundle_dir: Path) -> polyrec.Model:
    return polyrec.load(bundle_dir)


def test_server_and_model_answer_the_same(
    server: polyrec.RunningServer, model: polyrec.Model, table: pa.Table, request_: tuple[Any, pa.Table]
) -> None:
    with server.client() as client:
        served, local = client.predict(table), model.predict(table)
        np.testing.assert_allclose(served.probabilities, local.probabilities, atol=1e-6)
        assert len(served) == table.num_rows
        assert (served.path, served.quality) == (local.path, pytest.approx(local.quality))
        assert (served.degraded, served.reason, served.attempts, local.attempts) == (False, None, 1, 0)
        ranked, ranked_here = client.rank(*request_, top_k=3), model.rank(*request_, top_k=3)
        assert ranked.order.tolist() == ranked_here.order.tolist()
        assert len(ranked) == 3
        np.testing.assert_allclose(ranked.scores, ranked_here.scores, atol=1e-6)
        np.testing.assert_allclose(model.rank(*request_).scores[:3], ranked.scores, atol=1e-6)


def test_every_form_of_rows_gives_the_same_answer(
    server: polyrec.RunningServer, model: polyrec.Model, table: pa.Table
) -> None:
    expected = model.predict(table.to_pylist()).probabilities
    forms = [table, table.to_pydict(), table.to_pandas(), pl.DataFrame(table)]
    with server.client() as client:
        for rows in forms:
            np.testing.assert_allclose(client.predict(rows).probabilities, expected, atol=1e-6)
            np.testing.assert_allclose(model.predict(rows).probabilities, expected, atol=1e-6)


def test_many_rows_are_executed_in_parts(model: polyrec.Model, table: pa.Table) -> None:
    repeats = 12
    ids = np.repeat(np.arange(repeats), table.num_rows) * 1_000_000
    many = pa.concat_tables([table] * repeats)
    own = pa.array(many["request_id"].to_numpy() + ids)  # the repeats are requests of their own
    many = many.set_column(many.column_names.index("request_id"), "request_id", own)
    assert many.num_rows > 2 * BATCH_ROWS
    expected = np.tile(model.predict(table).probabilities, repeats)
    np.testing.assert_allclose(model.predict(many).probabilities, expected, atol=1e-6)


def test_coroutines_share_an_asynchronous_client(
    server: polyrec.RunningServer, model: polyrec.Model, table: pa.Table, request_: tuple[Any, pa.Table]
) -> None:
    async def ask() -> None:
        async with server.async_client(budget_ms=60_000) as client:
            assert await client.ready()
            answers = await asyncio.gather(*(client.predict(table.slice(i, 1)) for i in range(20)))
            alone = [model.predict(table.slice(i, 1)).probabilities[0] for i in range(20)]
            np.testing.assert_allclose([a.probabilities[0] for a in answers], alone, atol=1e-6)
            assert (await client.rank(*request_)).order.tolist() == model.rank(*request_).order.tolist()
            with pytest.raises(polyrec.InvalidRequest, match="shade"):
                await client.predict([{"shade": "red"}])
            with pytest.raises(polyrec.DeadlineExceeded):
                await client.predict(table, budget_ms=0.5)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"shade": "red"}], "unknown feature 'shade'"),
        ({"price": ["cheap"]}, "Expected float"),
        ({"price": [1.0], "item": ["a", "b"]}, "feature 'price': 1 values, but 'item' has 2"),
        (pd.DataFrame({"price": []}), "'columns' has no rows"),
    ],
)
def test_server_and_model_report_mistakes_alike(
    server: polyrec.RunningServer, model: polyrec.Model, rows: Any, message: str
) -> None:
    with server.client() as client:
        for ask in (client.predict, model.predict):
            with pytest.raises(polyrec.InvalidRequest, match=message) as raised:
                ask(rows)
            assert raised.value.status == 422


def test_a_budget_that_cannot_be_met_is_a_deadline(server: polyrec.RunningServer, table: pa.Table) -> None:
    with server.client(budget_ms=0.5) as client, pytest.raises(polyrec.DeadlineExceeded):
        client.predict(table)


def test_a_header_that_cannot_be_sent_is_told(server: polyrec.RunningServer, table: pa.Table) -> None:
    async def ask() -> None:
        async with server.async_client() as client:
            with pytest.raises(polyrec.InvalidRequest, match="a header cannot be sent"):
                await client.predict(table, request_id="a\r\nb")

    with server.client() as client, pytest.raises(polyrec.InvalidRequest, match="a header cannot be sent"):
        client.predict(table, request_id="a\r\nb")
    asyncio.run(ask())


def test_a_right_that_is_missing_is_named(server: polyrec.RunningServer, table: pa.Table) -> None:
    with server.client(priority=1) as client, pytest.raises(polyrec.NotAllowed, match="priority") as raised:
        client.predict(table)
    assert raised.value.status == 403


def test_a_rejection_is_waited_out_if_time_is_left(bundle_dir: Path, tmp_path: Path, table: pa.Table) -> None:
    tokens = tmp_path / "tokens.json"
    token = "0123456789abcdef"
    tokens.write_text(json.dumps({"clients": [{"name": "a", "token": token, "requests_per_second": 1}]}))
    with polyrec.serve(bundle_dir, tokens=tokens, **PATIENT) as server:
        with server.client() as client, pytest.raises(polyrec.NotAllowed) as raised:
            client.predict(table)
        assert raised.value.status == 401
        with server.client(token=token) as client:
            assert client.predict(table).attempts == 1
            with pytest.raises(polyrec.Overloaded) as rejected:
                client.predict(table, budget_ms=500)
            assert rejected.value.retry_after_s == 1
            begin = time.monotonic()
            assert client.predict(table, timeout_s=60).attempts > 1
            # the wait is the server's wish, whatever the machine does
            assert time.monotonic() - begin > 0.9


def test_a_server_that_is_gone_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with polyrec.Client(url, retries=1) as client:
            assert not client.ready()
            with pytest.raises(polyrec.Unavailable, match=f"no answer from {url}"):
                client.predict([{"item": "a"}])


def test_an_answer_that_cannot_be_decoded_is_not_ready() -> None:
    def answer() -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                connection.recv(2**16)
                head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n"
                connection.sendall(head + b"none")

    async def asked(url: str) -> bool:
        async with polyrec.AsyncClient(url) as client:
            return await client.ready()

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = threading.Thread(target=answer)
        server.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with polyrec.Client(url) as client:
            assert not client.ready()
        assert not asyncio.run(asked(url))
        server.join()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:8000", {}, "url is '127.0.0.1:8000'; it begins with http://"),
        ("http://127.0.0.1:1", {"budget": 3}, "unknown option 'budget'; known: budget_ms"),
    ],
)
def test_a_wrong_argument_is_named(url: str, options: dict[str, Any], message: str) -> None:
    for kind in (polyrec.Client, polyrec.AsyncClient):
        with pytest.raises(polyrec.InvalidRequest, match=message):
            kind(url, **options)
