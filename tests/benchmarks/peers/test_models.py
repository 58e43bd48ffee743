"""The models of benchmarks/peers: what is measured computes what its reference says, in every form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.graphs import peer_files
from benchmarks.peers.models import (
    CARDINALITIES,
    COUNTED,
    MODELS,
    SPECIALS,
    capped,
    value_of_rank,
    write_model,
    zipf_counts,
)
from benchmarks.peers.queries import (
    EXPONENT,
    PeerRows,
    binary_body,
    draw,
    json_body,
    ranking_body,
    share_context,
)
from benchmarks.peers.reference import Reference
from benchmarks.peers.servers import peer_session
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32
from polyrec.planner.plan import Limits
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.rows import encode

SMALL = 2_000
"""Rows of all tables together, of the small models that are tested."""


@pytest.fixture(scope="module", params=["kaggle", "user"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("peers")
    return write_model(replace(MODELS[request.param], rows=SMALL), folder / request.param)


@pytest.fixture(scope="module")
def rows(bundle: Bundle) -> PeerRows:
    return draw(bundle.manifest.schema_, value_of_rank(bundle), requests=3, rows=9)


def served(bundle: Bundle, body: bytes, header_bytes: int | None = None) -> F32:
    """Answers a request with Polyrec's codecs and runtime."""
    codec = OipCodec(bundle.manifest.schema_, Limits(), bundle.encoder.vocabularies)
    batch = encode([codec.decode(body, header_bytes).rows], bundle.encoder)
    return open_runtime("onnx", bundle).predict(batch)


def test_capped_sizes_add_up_to_the_rows() -> None:
    for rows in (SMALL, 2_000_000, 20_000_000):
        sizes = capped(CARDINALITIES, rows)
        assert rows - len(sizes) < sum(sizes) <= rows
        assert all(size == min(whole, max(sizes)) for size, whole in zip(sizes, CARDINALITIES, strict=True))


def test_half_of_the_features_are_the_contexts() -> None:
    schema = MODELS["kaggle"].schema
    assert (len(schema.context.dense), len(schema.candidate.dense)) == (7, 6)
    assert (len(schema.context.singles), len(schema.candidate.singles)) == (13, 13)
    schema = MODELS["user"].schema
    assert (len(schema.context.dense), len(schema.candidate.dense)) == (13, 0)
    assert (len(schema.context.singles), len(schema.candidate.singles)) == (13, 13)


def test_ids_are_drawn_by_popularity(bundle: Bundle) -> None:
    ids = value_of_rank(bundle)
    drawn = draw(bundle.manifest.schema_, ids, requests=2, rows=500).sparse[:, :, 2]
    values, counts = np.unique(drawn, return_counts=True)
    assert values[counts.argmax()] == ids[2][0]


def test_every_form_answers_as_the_reference(bundle: Bundle, rows: PeerRows) -> None:
    reference, schema = Reference(bundle), bundle.manifest.schema_
    shared = share_context(rows, schema)
    for request in range(len(rows)):
        expected = reference(rows.dense[request], rows.sparse[request])
        assert np.ptp(expected) > 0.01
        np.testing.assert_allclose(served(bundle, json_body(rows, request)), expected, atol=1e-5)
        np.testing.assert_allclose(served(bundle, binary_body(rows, request), 0), expected, atol=1e-5)
        expected = reference(shared.dense[request], shared.sparse[request])
        np.testing.assert_allclose(served(bundle, json_body(shared, request)), expected, atol=1e-5)
        np.testing.assert_allclose(served(bundle, ranking_body(shared, request)), expected, atol=1e-5)


def test_peers_answer_as_the_reference(bundle: Bundle, rows: PeerRows, tmp_path: Path) -> None:
    session = peer_session.PeerSession(peer_files(bundle, tmp_path))
    for request in range(len(rows)):
        found = session(*peer_session.decode(json_body(rows, request)))
        expected = Reference(bundle)(rows.dense[request], rows.sparse[request])
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_peers_refuse_what_is_out_of_range(bundle: Bundle, rows: PeerRows, tmp_path: Path) -> None:
    session = peer_session.PeerSession(peer_files(bundle, tmp_path))
    with pytest.raises(peer_session.BadRequest):
        session(rows.dense[0], rows.sparse[0] - 10**6)
    with pytest.raises(peer_session.BadRequest):
        peer_session.decode(b"{}")


def test_counts_are_those_of_the_requests(tmp_path: Path) -> None:
    bundle = write_model(replace(MODELS["kaggle"], rows=SMALL), tmp_path / "counted", EXPONENT)
    schema = bundle.manifest.schema_
    assert not schema.context.names
    drawn = draw(schema, value_of_rank(bundle), 1000, 200)
    widest = max(range(len(schema.categorical)), key=lambda i: MODELS["kaggle"].sizes[i])
    vocabulary = bundle.encoder.vocabularies[list(schema.tables)[widest]]
    ranks = vocabulary.rank_of_id[drawn.sparse[:, :, widest]].ravel()
    assert np.all(np.diff(vocabulary.counts) <= 0)
    assert not vocabulary.counts[-SPECIALS:].any()
    assert np.array_equal(vocabulary.counts, zipf_counts(vocabulary.size, EXPONENT))
    for hottest in (1, 10, vocabulary.size // 2):
        expected = vocabulary.counts[:hottest].sum() / COUNTED
        assert (ranks < hottest).mean() == pytest.approx(expected, abs=0.01)
