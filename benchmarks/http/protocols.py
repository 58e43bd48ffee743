"""Measures the cost of a request over HTTP with JSON tensors, over HTTP with binary tensors, and over gRPC.

    python -m benchmarks.http.protocols BUNDLE [BUNDLE ...] [--rows 23] [--turns 4] [--seconds 3] [--out FILE]

The server has one core and the client another. The protocols take turns on the same server, so that other
load on the machine affects all equally. Each is measured in closed loops of 1 and 16 requests in flight: over
HTTP on one connection each, over gRPC all on one. Figures are medians of the turns. CPU time is that of the
server's whole process; the model's part is the same for all three.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import grpc.aio
import numpy as np
import uvloop

from benchmarks.command import CLIENT_CORE, SERVER_CORE, command_parser, save
from polyrec.loadtest.machine import core_seconds, processor
from polyrec.loadtest.traffic.request_bodies import INFER, infer_body
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.report.text import markdown_table
from polyrec.server.child import ServerProcess, start
from polyrec.server.grpc.messages import SERVICE, message_class

WAYS = ("HTTP, JSON", "HTTP, binary", "gRPC, raw")
IN_FLIGHT = (1, 16)
DIFFERENT_REQUESTS = 256
DATATYPES = {"f": "FP32", "i": "INT64"}
Ask = Callable[[int], Awaitable[None]]
"""Sends the request with a given number and waits for its answer."""


@dataclass(frozen=True, slots=True)
class ProtocolTurn:
    """One turn. Times in microseconds. cpu_us: the server's CPU time per request."""

    model: str
    way: str
    in_flight: int
    request_bytes: int
    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float


def random_tensors(bundle: Bundle, rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Returns plain rows of uniformly random ids, three per list."""
    schema, encoder = bundle.manifest.schema_, bundle.encoder
    tensors: dict[str, Any] = {}
    if schema.dense:
        tensors["dense"] = random.random((rows, len(schema.dense)), np.float32)
    ids = [random.integers(0, encoder.vocabulary(f).size, rows) for f in schema.singles]
    tensors["sparse"] = np.stack(ids, 1)
    for f in schema.categorical:
        if f.multi:
            tensors[f"{f.name}.values"] = random.integers(0, encoder.vocabulary(f).size, 3 * rows)
            tensors[f"{f.name}.lengths"] = np.full(rows, 3)
    return tensors


def http_request(tensors: dict[str, Any], binary: bool) -> bytes:
    """Returns head and body of a request."""
    body, headers = infer_body(tensors, binary=binary)
    lines = [f"POST {INFER} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def grpc_request(tensors: dict[str, Any]) -> bytes:
    """Returns a serialized ModelInferRequest."""
    request = message_class("ModelInferRequest")(model_name="dlrm")
    for name, array in tensors.items():
        request.inputs.add(name=name, datatype=DATATYPES[array.dtype.kind], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


async def http_asker(stack: AsyncExitStack, url: str, requests: Sequence[bytes]) -> Ask:
    """Opens a connection of its own and yields the function that sends requests on it."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    stack.callback(writer.close)

    async def ask(number: int) -> None:
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))

    return ask


async def turn(
    bundle: Bundle, server: ServerProcess, way: str, in_flight: int, requests: Sequence[bytes], seconds: float
) -> ProtocolTurn:
    """Runs one closed loop."""
    async with AsyncExitStack() as stack:
        if way == WAYS[2]:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(server.grpc)))
            method = channel.unary_unary(f"/{SERVICE}/ModelInfer")

            async def call(number: int) -> None:
                await method(requests[number % len(requests)])

            askers: list[Ask] = [call] * in_flight
        else:
            askers = [await http_asker(stack, server.url, requests) for _ in range(in_flight)]
        numbers, took_s = count(), list[float]()

        async def loop(ask: Ask, until_s: float) -> None:
            while (began_s := time.perf_counter()) < until_s:
                await ask(next(numbers))
                took_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*(loop(ask, time.perf_counter() + seconds / 4) for ask in askers))
        took_s.clear()
        began_s, cpu_s = time.perf_counter(), core_seconds(server.process.pid)[0]
        await asyncio.gather(*(loop(ask, began_s + seconds) for ask in askers))
        ended_s, cpu_s = time.perf_counter(), core_seconds(server.process.pid)[0] - cpu_s
    asked = len(took_s)
    p50_us, p99_us = (1e6 * np.quantile(took_s, (0.5, 0.99))).tolist()
    return ProtocolTurn(
        bundle.manifest.schema_.name,
        way,
        in_flight,
        round(median(map(len, requests))),
        asked / (ended_s - began_s),
        p50_us,
        p99_us,
        1e6 * cpu_s / asked,
    )


async def measure(folder: Path, rows: int, turns: int, seconds: float) -> list[ProtocolTurn]:
    """Runs all turns on one bundle."""
    bundle = load_bundle(folder)
    random = np.random.default_rng(0)
    asked = [random_tensors(bundle, rows, random) for _ in range(DIFFERENT_REQUESTS)]
    requests = {
        WAYS[0]: [http_request(tensors, binary=False) for tensors in asked],
        WAYS[1]: [http_request(tensors, binary=True) for tensors in asked],
        WAYS[2]: [grpc_request(tensors) for tensors in asked],
    }
    settings = {"bundle": folder, "grpc_port": 0, "default_budget_ms": 10_000, "drain_grace_s": 0}
    with start(settings, core=SERVER_CORE) as server:
        return [
            await turn(bundle, server, way, in_flight, requests[way], seconds)
            for _ in range(turns)
            for in_flight in IN_FLIGHT
            for way in WAYS
        ]


def table(turns: Sequence[ProtocolTurn]) -> str:
    """Returns the medians of the turns as a Markdown table."""
    rows = []
    keys = dict.fromkeys((t.model, t.way, t.in_flight) for t in turns)
    for key in keys:
        same = [t for t in turns if (t.model, t.way, t.in_flight) == key]
        names = ("requests_per_s", "p50_us", "p99_us", "cpu_us")
        figures = (f"{median(getattr(t, name) for t in same):,.0f}" for name in names)
        rows.append([key[0], key[1], f"{same[0].request_bytes:,}", str(key[2]), *figures])
    head = ["model", "way", "bytes", "in flight", "requests/s", "p50 us", "p99 us", "processor us a request"]
    return "\n".join(markdown_table(head, rows))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=23)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, help="also write all turns there, JSON")
    args = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    turns: list[ProtocolTurn] = []
    for folder in args.bundles:
        turns += uvloop.run(measure(folder, args.rows, args.turns, args.seconds))
    print(f"{processor()}; rows {args.rows}; {args.turns} turns of {args.seconds:g} s\n")
    print(table(turns))
    save(args.out, [asdict(t) for t in turns])


if __name__ == "__main__":
    main()
