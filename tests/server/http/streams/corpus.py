"""Bodies of hot requests, made from generated clicks: what the stream fuzzer and the soak send.

A bundle and a Parquet file in, request bodies of every hot endpoint out. A body of the inference protocol can
carry an id, which the server repeats: an answer that belongs to another request shows.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import INFER, PREDICT, RANK
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile

HEADER_BYTES = b"Inference-Header-Content-Length"
QUERIES = 12
"""Rankings of the data that bodies are made of."""


@dataclass(frozen=True, slots=True)
class Body:
    """One body for `target`. json_bytes: length of its JSON part if binary tensors follow."""

    target: str
    content: bytes
    json_bytes: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def with_id(self, name: str) -> Body:
        """The same inference request under that id; other endpoints have no ids."""
        if self.target != INFER:
            return self
        given = b'{"id":"%s",' % name.encode()
        length = None if self.json_bytes is None else self.json_bytes + len(given) - 1
        headers = () if length is None else ((HEADER_BYTES, b"%d" % length),)
        return Body(self.target, given + self.content[1:], length, headers)

    def packed(self) -> Body:
        """Compressed as a whole with gzip."""
        content = gzip.compress(self.content, 1, mtime=0)
        return Body(self.target, content, None, (*self.headers, (b"Content-Encoding", b"gzip")))


@dataclass(frozen=True, slots=True)
class Corpus:
    """right: bodies that are answered 200; wrong: bodies that are refused, by the status that they get."""

    right: tuple[Body, ...]
    wrong: Mapping[int, tuple[Body, ...]] = field(default_factory=dict)


def corpus_of(bundle: Bundle, clicks: Path) -> Corpus:
    """Bodies from the first rows of `clicks`."""
    schema = bundle.manifest.schema_
    queries = Queries(read_rows(clicks, schema, 400), schema, bundle.encoder)
    right: list[Body] = []
    for i in range(min(QUERIES, len(queries))):
        query = queries[i]
        right.append(Body(PREDICT, queries.predict(query)[0]))
        right.append(Body(RANK, queries.rank(query)[0]))
        for binary in (True, False):
            content, headers = queries.infer(query, binary)
            length = int(headers[HEADER_BYTES.decode()]) if headers else None
            given = () if length is None else ((HEADER_BYTES, b"%d" % length),)
            right.append(Body(INFER, content, length, given))
    right += [
        Body(PREDICT, b'{"instances": [%s]}' % b", ".join([b"{}"] * rows)) for rows in (1, 2, 3, 5, 40, 150)
    ]
    right += [Body(RANK, b'{"candidates": [{}, {}, {}, {}], "top_k": %d}' % k) for k in (1, 2, 4)]
    right.append(Body(PREDICT, json.dumps({"instances": _instances(clicks)}).encode()))
    wrong = {
        400: (
            Body(PREDICT, b""),
            Body(RANK, b'{"candidates"'),
            Body(INFER, b'{"inputs": []}'),
            Body(INFER, b"{}", None, ((HEADER_BYTES, b"100000"),)),
            Body(PREDICT, b'{"instances": [{}]}', None, ((b"Content-Encoding", b"gzip"),)),
            Body(PREDICT, b'{"instances": [{}]}', None, ((b"Content-Encoding", b"br"),)),
        ),
        422: (
            Body(PREDICT, b'{"candidates": [{}]}'),
            Body(RANK, b'{"instances": [{}]}'),
            Body(PREDICT, b'{"instances": [{"price": "much"}]}'),
        ),
    }
    return Corpus(tuple(right), wrong)


def _instances(clicks: Path) -> list[dict[str, object]]:
    """A few rows as JSON instances, each with only some of its features."""
    schema = load_schema("trivago")
    rows = read_rows(clicks, schema, 6).select(schema.context.names + schema.candidate.names).to_pylist()
    return [{name: row[name] for name in list(row)[: 2 + i]} for i, row in enumerate(rows)]


def trained(folder: Path, kind: RepresentationKind = "table") -> tuple[Path, Bundle]:
    """(clicks, bundle) of 6,000 generated rows, in a few seconds: for programs that have no fixtures."""
    schema = load_schema("trivago")
    clicks = folder / "clicks.parquet"
    if not clicks.exists():
        generate(clicks, 6000, seed=7, items=300, users=200)
    training = RecipeFile(
        architecture=Architecture(width=8, bottom=(16,), top=(32,), interaction="dot"),
        recipe=Recipe(epochs=1, batch_rows=256, hide=0.5, hide_from_rows=100),
    )
    path = Learner(open_data(clicks, schema), schema, training, kind).learn(folder / kind).path
    return clicks, load_bundle(path)
