"""Measures ranking requests on the wire: the context once or in every row, as JSON and as tensors.

    python -m benchmarks.http.wire --bundle runs/table --data ../shared/data/trivago/impressions.parquet

Bytes are those of whole HTTP requests including the head, as made by `loadtest/traffic/request_bodies.py`,
and of the same bodies compressed by gzip (level 6). Times are the server's on one core: `inflate`
decompresses, `parse` reads the body into rows, `encode` converts them to the model's batch. Each request is
different, with contexts and candidates drawn from the data. Ranked and exploded requests alternate; figures
are medians.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import CLIENT_CORE, command_parser
from polyrec.loadtest.drivers.connection import Target
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.queries import Queries, Query, Request, read_rows
from polyrec.loadtest.traffic.request_bodies import HEADER_BYTES, INFER, PREDICT, RANK
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import Limits
from polyrec.report.text import markdown_table
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.rows import Rows, encode
from polyrec.server.http.connection.body import Inflater

CANDIDATES = (23, 270)
ROWS = 200_000
DIFFERENT_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class Form:
    """A request format: its encoding and the server's decoding."""

    path: str
    build: Callable[[Query], Request]
    parse: Callable[[Request], Rows]


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of one form: bytes of a request, microseconds. inflate: of the body that gzip made."""

    bytes: int
    gzip_bytes: int
    inflate_us: float
    parse_us: float
    encode_us: float

    @property
    def total_us(self) -> float:
        return self.parse_us + self.encode_us


@dataclass(frozen=True, slots=True)
class WireResult:
    """One format at one size, both ways."""

    format: str
    candidates: int
    ranked: Figures
    exploded: Figures


def formats(bundle: Bundle, queries: Queries) -> dict[str, tuple[Form, Form]]:
    """Returns (ranked, exploded) by name."""
    schema, limits = bundle.manifest.schema_, Limits()
    decoder, codec = JsonDecoder(schema, limits), OipCodec(schema, limits, bundle.encoder.vocabularies)

    def infer(request: Request) -> Rows:
        body, headers = request
        length = headers.get(HEADER_BYTES)
        return codec.decode(body, None if length is None else int(length)).rows

    return {
        "/v1, JSON": (
            Form(RANK, queries.rank, lambda request: decoder.rank(request[0]).rows),
            Form(PREDICT, queries.predict, lambda request: decoder.predict(request[0])),
        ),
        "infer, JSON": (
            Form(INFER, lambda query: queries.infer_ranking(query, binary=False), infer),
            Form(INFER, lambda query: queries.infer(query, binary=False), infer),
        ),
        "infer, binary": (Form(INFER, queries.infer_ranking, infer), Form(INFER, queries.infer, infer)),
    }


def measure(
    name: str, forms: tuple[Form, Form], queries: Sequence[Query], bundle: Bundle, rounds: int
) -> WireResult:
    """Measures bytes and times of queries as rankings and as plain rows.

    forms: ranked, exploded. Raises SystemExit if the two decode to different rows.
    """
    requests = [[form.build(query) for query in queries] for form in forms]
    for ranked, exploded in zip(*requests, strict=True):
        batches = [
            encode([form.parse(request)], bundle.encoder)
            for form, request in zip(forms, (ranked, exploded), strict=True)
        ]
        check_equal(*batches)
    parse: list[list[float]] = [[], []]
    encoded: list[list[float]] = [[], []]
    for _ in range(rounds):
        for i in range(len(queries)):
            for way, form in enumerate(forms):
                request = requests[way][i]
                start = time.perf_counter()
                rows = form.parse(request)
                middle = time.perf_counter()
                encode([rows], bundle.encoder)
                end = time.perf_counter()
                parse[way].append(middle - start)
                encoded[way].append(end - middle)
    figures = []
    for way, form in enumerate(forms):
        target = "http://127.0.0.1:8000" + form.path
        whole = [len(Target(target, headers).request(body)) for body, headers in requests[way]]
        bodies = [gzip.compress(body, 6) for body, _ in requests[way]]
        packed = [
            len(Target(target, {**headers, "Content-Encoding": "gzip"}).request(body))
            for body, (_, headers) in zip(bodies, requests[way], strict=True)
        ]
        figures.append(
            Figures(
                int(np.median(whole)),
                int(np.median(packed)),
                round(1e6 * inflated_s(bodies * rounds), 1),
                round(1e6 * float(np.median(parse[way])), 1),
                round(1e6 * float(np.median(encoded[way])), 1),
            )
        )
    return WireResult(name, queries[0].candidates.size, *figures)


def inflated_s(bodies: Sequence[bytes]) -> float:
    """Returns the median seconds to decompress a body in the server's way."""
    took = []
    for body in bodies:
        start = time.perf_counter()
        inflater = Inflater("gzip", 2**30, len(body))
        inflater.feed(body)
        while inflater.step():
            pass
        inflater.finish()
        took.append(time.perf_counter() - start)
    return float(np.median(took))


def check_equal(ranked: Batch, exploded: Batch) -> None:
    """Checks that all forms carry the same rows, without which the figures would mean nothing."""
    if ranked.context.rows != 1:
        raise SystemExit(f"the ranked request has {ranked.context.rows} contexts")
    a, b = ranked.exploded(), exploded.exploded()
    for role in ("context", "candidate"):
        for part in ("dense", "ranks", "bag_values", "bag_offsets"):
            if not np.array_equal(getattr(getattr(a, role), part), getattr(getattr(b, role), part)):
                raise SystemExit(f"ranked and exploded requests differ in {role}.{part}")


def table(results: Sequence[WireResult]) -> str:
    """Returns a Markdown table with one row per result."""
    heads = ["format", "candidates", "bytes, ranked", "exploded", "factor", "gzip, ranked", "exploded"]
    heads += ["inflate us, ranked", "exploded", "parse us, ranked", "exploded"]
    heads += ["encode us, ranked", "exploded", "both, factor"]
    rows = []
    for r in results:
        a, b = r.ranked, r.exploded
        cells = [r.format, f"{r.candidates}", f"{a.bytes:,}", f"{b.bytes:,}", f"{b.bytes / a.bytes:.2f}x"]
        cells += [f"{a.gzip_bytes:,}", f"{b.gzip_bytes:,}"]
        cells += [
            f"{us:,.0f}"
            for us in (a.inflate_us, b.inflate_us, a.parse_us, b.parse_us, a.encode_us, b.encode_us)
        ]
        cells += [f"{b.total_us / a.total_us:.2f}x"]
        rows.append(cells)
    return "\n".join(markdown_table(heads, rows))


def machine() -> str:
    return f"{processor()}, one core, Python {platform.python_version()}"


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="its schema and vocabularies are used")
    parser.add_argument("--data", type=Path, required=True, help="rows to ask about")
    parser.add_argument("--candidates", type=int, nargs="+", default=CANDIDATES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    bundle = load_bundle(args.bundle)
    bundle.encoder.prepare()
    schema = bundle.manifest.schema_
    queries = Queries(read_rows(args.data, schema, ROWS), schema, bundle.encoder)
    results = []
    for candidates in args.candidates:
        random = np.random.default_rng(candidates)
        drawn = [queries.sample(candidates, random) for _ in range(DIFFERENT_REQUESTS)]
        for name, forms in formats(bundle, queries).items():
            results.append(measure(name, forms, drawn, bundle, args.rounds))
    if args.json:
        out: dict[str, Any] = {"machine": machine(), "rounds": args.rounds}
        print(json.dumps(out | {"results": [asdict(r) for r in results]}, indent=2))
    else:
        print(machine())
        print(table(results))


if __name__ == "__main__":
    main()
