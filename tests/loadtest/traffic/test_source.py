from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from polyrec.loadtest.traffic.json_bodies import JsonBodies
from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.source import Source, open_source
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.schema import load_schema

TRIVAGO = load_schema("trivago")


@pytest.fixture(scope="module")
def source(clicks: Path) -> Source:
    return Source(read_rows(clicks, TRIVAGO, 2000), TRIVAGO)


def test_json_bodies_are_the_documents_of_queries(clicks: Path) -> None:
    data = read_rows(clicks, TRIVAGO, 1500)
    queries = Queries(data, TRIVAGO)
    written = JsonBodies(data, TRIVAGO, queries.firsts)
    random = np.random.default_rng(5)
    for query in [*(queries[i] for i in range(len(queries))), *(queries.sample(n, random) for n in (1, 60))]:
        assert json.loads(written.rank(query)) == json.loads(queries.rank(query)[0])


def test_no_two_requests_are_the_same_even_when_the_data_are_used_up(source: Source) -> None:
    n = 3 * source.sizes.size
    rows, body = source.shuffled(n, seed=1)
    bodies = [body(i) for i in range(n)]
    assert len(set(bodies)) == n
    assert rows.tolist() == [len(json.loads(b)["candidates"]["item"]) for b in bodies]
    # the first pass is the data's own requests, each once
    assert sorted(rows[: source.sizes.size].tolist()) == sorted(source.sizes.tolist())


def test_requests_have_the_given_sizes_and_depend_on_the_seed(source: Source) -> None:
    sizes = np.array([1, 100, 700])
    _, body = source.sampled(sizes, seed=2)
    assert [len(json.loads(body(i))["candidates"]["item"]) for i in range(3)] == [1, 100, 700]
    again, other = source.sampled(sizes, seed=2)[1], source.sampled(sizes, seed=3)[1]
    assert body(1) == again(1) != other(1)


def test_rows_are_synthetic_without_data(bundle: Bundle) -> None:
    rows, body = open_source(None, bundle, seed=0).shuffled(50, seed=0)
    assert len({body(i) for i in range(50)}) == 50
    assert rows.min() >= 5
