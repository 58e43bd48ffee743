"""Measures how long one request body holds the event loop: adversarial and large legal bodies, worst first.

    python -m benchmarks.http.body_cost [--schema trivago] [--times 7]

Each body has the maximum size that the server accepts by default for the schema, in a shape chosen to be
slow. It passes through the server's steps between two iterations of the event loop: one step of
decompression; counting, parsing, conversion to rows, and writing the error response. Encoding comes later, in
a batch with other requests' rows, which --max-batch-rows bounds; it is shown for a batch of this body alone.
Times are medians over `--times` runs in this thread's CPU time, since the wall clock would include other
programs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.command import command_parser
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.errors import FeatureError
from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES, Categorical, Dense, Schema, load_schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Limits
from polyrec.server.codecs.body_limits import COUNTED_FROM_BYTES, FULL_VALUES
from polyrec.server.codecs.json_numbers import ALWAYS_FAST_BYTES
from polyrec.server.codecs.json_rows import MAX_DIGITS, JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.rows import Rows
from polyrec.server.errors import RequestError, error_response
from polyrec.server.http.connection.body import Inflater

KNOWN_VALUES = 300_000
ROWS = 1024
"""Rows of the largest legal requests: with 40 values each, they reach the maximum number of values."""
HARD = (b"5e-320", b"2.2250738585072011e-308", b"9007199254740993e290", b"1.730283807869775635759e301")
"""Numbers that msgspec converts in 7 to 13 us each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A body and its destination. header_bytes: bytes of the JSON in inference requests with binary data."""

    name: str
    endpoint: str
    body: bytes
    header_bytes: int | None = None


def filled(head: bytes, unit: bytes, tail: bytes, size: int) -> bytes:
    """Returns `head`, then as many `unit` as fit into `size` bytes, then `tail`."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def shapes(schema: Schema, size: int, rows: int) -> Iterator[Shape]:
    """Yields bodies of up to `size` bytes that are slow to read, whether accepted or not."""
    number = next(f.name for f in schema.dense).encode()
    string = next(f.name for f in schema.categorical if not f.multi and f.type == "string").encode()
    first = schema.categorical[0].name.encode()
    bags = [f for f in schema.categorical if f.multi]

    def column(feature: bytes, unit: bytes, most: int = size) -> bytes:
        return filled(b'{"columns":{"%b":[' % feature, unit + b",", unit + b"]}}", most)

    def text(unit: bytes) -> bytes:
        return filled(b'{"columns":{"%b":["' % string, unit, b'"]}}', size)

    def predict(name: str, body: bytes) -> Shape:
        return Shape(name, "predict", body)

    for unit in (b"1", b"1.5", b"0.12345678901234567", b"null", b"-0." + b"0" * 300 + b"1", *HARD):
        for most in (ALWAYS_FAST_BYTES, 2 * ALWAYS_FAST_BYTES, COUNTED_FROM_BYTES - 1, size):
            yield predict(f"{most} bytes of numbers {unit[:24].decode()}", column(number, unit, most))
    yield predict("numbers of 4,000 digits", column(number, b"1" * 4000))
    yield predict("hard numbers of 760 digits", column(number, b"2.22507385850720" + b"1" * 760 + b"e-308"))
    yield predict("hard numbers without exponent", column(number, b"0." + b"0" * 307 + b"22250738585072011"))
    yield predict("one number of zeros", filled(b'{"columns":{"%b":[0.' % number, b"0", b"1]}}", size))
    for row in (b"{}", b'{"%b":5e-320}' % number, b'{"%b":"\xc3\xa9\xc5\xa1"}' % string):
        for most in (COUNTED_FROM_BYTES - 1, size):
            body = filled(b'{"instances":[', row + b",", row + b"]}", most)
            yield predict(f"{most} bytes of rows {row.decode()}", body)
    for value in (b'""', b'"a"', b'"\xc3\xa9\xc5\xa1"', b"[]", b'[""]', b"{}"):
        feature = bags[0].name.encode() if bags and value.startswith(b"[") else string
        for most in (COUNTED_FROM_BYTES - 1, size):
            yield predict(f"{most} bytes of values {value.decode()}", column(feature, value, most))
    for unit in (b"a", b"\\n", b"\\u00e9", b"\\ud83d\\ude00", b"\xc3\xa9", b"a\xf0\x9f\x98\x80", b","):
        yield predict(f"one string of {unit!r}", text(unit))
        yield predict(f"one key of {unit!r}", filled(b'{"instances":[{"', unit, b'":1}]}', size))
    yield predict(
        "one value, over and over", filled(b'{"instances":[{', b'"%b":"",' % string, b'"x":1}]}', size)
    )
    yield predict("columns, over and over", filled(b"{", b'"columns":{},', b'"columns":{}}', size))
    yield predict("white space", filled(b"", b" ", b"{}", size))
    yield predict("lines", filled(b'{"instances":[', b"\n\t", b"{}]}", size))
    yield predict("bad UTF-8 at the end", filled(b'{"columns":{"%b":["' % string, b"a", b'\xff"]}}', size))
    yield predict(
        "half a surrogate at the end", filled(b'{"columns":{"%b":["' % string, b"a", b'\\ud800"]}}', size)
    )
    yield predict(
        "NaN at the end",
        filled(b'{"columns":{"%b":[' % number, b"1.0000000,", b"NaN]}}", COUNTED_FROM_BYTES - 1),
    )
    yield predict("truncated", column(string, b'"0123456789abcdef0123456789abcdef"')[:-4])
    yield predict("nested lists", b"[" * size)
    yield predict("nested lists in a feature", filled(b'{"columns":{"%b":' % first, b"[", b"", size))
    yield predict("integers of 4,000 digits", column(_integer(schema).encode(), b"1" * 4000))
    yield from _legal(schema, rows)
    yield from _tensors(schema, size, rows)


def _integer(schema: Schema) -> str:
    return next((f.name for f in schema.categorical if f.type == "integer"), schema.categorical[0].name)


def listed_values(schema: Schema) -> int:
    """Returns the number of list values per row that a request with the maximum number of rows can have."""
    features = len(schema.dense) + len(schema.categorical)
    return (FULL_VALUES // ROWS - features) // max(1, sum(f.multi for f in schema.categorical)) - 1


def _legal(schema: Schema, rows: int) -> Iterator[Shape]:
    """Yields the largest valid bodies, with known, unknown and long values."""
    full = listed_values(schema)
    for what, string, number in (
        ("known", "v%d", 12.5),
        ("unknown", "unknown %d", 12.5),
        ("not ASCII", "é%d", 12.5),
        ("hard numbers", "v%d", 2.2250738585072011e-308),
    ):
        for form in ("instances", "columns", "rank"):
            for listed in (0, full):
                body = _rows(schema, rows, string, number, form, listed)
                endpoint = "rank" if form == "rank" else "predict"
                yield Shape(f"{rows} rows, {form}, {what}, {listed} in a list", endpoint, body)


def _rows(schema: Schema, rows: int, string: str, number: float, form: str, listed: int) -> bytes:
    def one(feature: Dense | Categorical, i: int) -> object:
        if isinstance(feature, Dense):
            return number
        if feature.type == "integer":
            return i % 3
        if feature.multi:
            length = min(listed, feature.max_length)
            return [string % ((i * 977 + j * 7919) % KNOWN_VALUES) for j in range(length)]
        return string % (i * 977 % KNOWN_VALUES)

    features: tuple[Dense | Categorical, ...] = (*schema.dense, *schema.categorical)
    if form == "instances":
        document: object = {"instances": [{f.name: one(f, i) for f in features} for i in range(rows)]}
    elif form == "columns":
        document = {"columns": {f.name: [one(f, i) for i in range(rows)] for f in features}}
    else:
        document = {
            "context": {f.name: one(f, 1) for f in features if f.role == "context"},
            "candidates": [
                {f.name: one(f, i) for f in features if f.role == "candidate"} for i in range(rows)
            ],
        }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _tensors(schema: Schema, size: int, rows: int) -> Iterator[Shape]:
    full = listed_values(schema)
    dense, singles = len(schema.dense), sum(not f.multi for f in schema.categorical)

    def infer(name: str, body: bytes) -> Shape:
        return Shape(f"infer: {name}", "infer", body)

    def data(name: str, kind: str, shape: list[int], unit: bytes) -> bytes:
        head = b'{"inputs":[{"name":"%b","datatype":"%b","shape":%b,"data":[' % (
            name.encode(),
            kind.encode(),
            json.dumps(shape).encode(),
        )
        return filled(head, unit + b",", unit + b"]}]}", size)

    for unit in (b"1", b"[]", b"[1,1]", b'""', b"1e-320", HARD[1], b"null"):
        for shape in ([rows, dense], [size // (len(unit) + 1), dense]):
            yield infer(f"dense {shape} of {unit.decode()}", data("dense", "FP32", shape, unit))
    for unit in (b"1", b"[]", b"1" * 4000, b"1.5"):
        yield infer(f"sparse of {unit[:20].decode()}", data("sparse", "INT64", [rows, singles], unit))
    small = b'{"name":"","shape":[],"datatype":""}'
    for most in (COUNTED_FROM_BYTES - 1, size):
        yield infer(f"{most} bytes of inputs", filled(b'{"inputs":[', small + b",", small + b"]}", most))
        outputs = filled(b'{"inputs":[],"outputs":[', b'{"name":""},', b'{"name":""}]}', most)
        yield infer(f"{most} bytes of outputs", outputs)
    dimensions = filled(b'{"inputs":[{"name":"dense","datatype":"FP32","shape":[', b"1,", b"1]}]}", size)
    yield infer("a shape of many dimensions", dimensions)
    yield infer("shapes, over and over", filled(b'{"inputs":[{', b'"shape":[1],', b'"name":"a"}]}', size))
    yield infer(
        "a long name", filled(b'{"inputs":[{"shape":[1],"datatype":"INT64","name":"', b"a", b'"}]}', size)
    )
    yield infer("own parameters", filled(b'{"inputs":[],"parameters":{', b'"a":[],', b'"a":1}}', size))
    yield infer("nested own parameters", filled(b'{"inputs":[],"parameters":{"a":', b"[", b"", size))
    yield infer(
        "timeouts of 4,000 digits",
        filled(b'{"parameters":{', b'"timeout":%b,' % (b"1" * 4000), b'"a":1},"inputs":[]}', size),
    )
    yield Shape(
        "infer: raw rows", "infer", b"\0" * (size // (4 * dense + 8 * singles) * (4 * dense + 8 * singles)), 0
    )
    random = np.random.default_rng(0)
    flat = random.integers(0, 10**5, rows * singles).tolist()
    numbers = random.normal(size=rows * dense).tolist()
    inputs: list[dict[str, object]] = [
        {"name": "dense", "datatype": "FP32", "shape": [rows, dense], "data": numbers},
        {"name": "sparse", "datatype": "INT64", "shape": [rows, singles], "data": flat},
    ]
    for f in schema.categorical:
        if f.multi:
            values = random.integers(0, 10**5, rows * full).tolist()
            inputs.append(
                {"name": f"{f.name}.values", "datatype": "INT64", "shape": [len(values)], "data": values}
            )
            lengths = [full] * rows
            inputs.append(
                {"name": f"{f.name}.lengths", "datatype": "INT64", "shape": [rows], "data": lengths}
            )
    yield infer(
        f"{rows} rows, {full} in a list", json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    )


def huffman_tables(blocks: int) -> bytes:
    """Returns a raw deflate stream of empty blocks with 15-bit Huffman codes: all work and no output."""
    lengths = [*range(1, 15), 15, 15]
    # Run lengths (18) for the 256 literals without a code, then the lengths themselves, all of 4 bits.
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    code = {symbol: f"{i:04b}" for i, symbol in enumerate([*range(1, 16), 18])}

    def number(value: int, bits: int) -> str:
        return f"{value:0{bits}b}"[::-1]

    block = (
        number(0, 1)
        + number(2, 2)
        + number(len(lengths) - 1, 5)
        + number(len(lengths) - 1, 5)
        + number(15, 4)
    )
    block += "".join(number(4 if symbol in code else 0, 3) for symbol in order)
    block += code[18] + number(138 - 11, 7) + code[18] + number(118 - 11, 7)
    block += "".join(code[length] for length in lengths * 2)
    block += "0"  # the end of the block, whose code is the only one of one bit
    stream = block * blocks
    return int(stream[::-1], 2).to_bytes(-(-len(stream) // 8), "little")


def encoder_of(schema: Schema) -> Encoder:
    """Adds a vocabulary of KNOWN_VALUES to every table that has none."""
    vocabularies: dict[str, Vocabulary] = {}
    for table, (f, *_) in schema.tables.items():
        size = f.cardinality or KNOWN_VALUES
        values = None
        if f.cardinality is None:
            values = pa.array([f"v{i}" for i in range(size)] if f.type == "string" else range(size))
        ranks = np.arange(size + 2)
        counts = np.zeros(size + 2, np.int64)
        vocabularies[table] = Vocabulary(table, f.type, size, ranks, counts, values, oov=f.oov)
    standards = {f.name: Standard() for role in ROLES for f in schema.layout(role).dense}
    encoder = Encoder(schema, vocabularies, standards)
    encoder.prepare()
    return encoder


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds, and the body's outcome. decode: in one piece. encode: as a batch of its own."""

    decode_ms: float
    encode_ms: float
    outcome: str


class Reader:
    """Reads bodies in the same way as the server."""

    def __init__(self, schema: Schema, limits: Limits) -> None:
        self.decoder = JsonDecoder(schema, limits)
        self._codec = OipCodec(schema, limits)
        self._encoder = encoder_of(schema)

    def cost(self, shape: Shape, times: int) -> Cost:
        decode_s, encode_s = [], []
        for _ in range(times):
            began_s = time.thread_time()
            rows, outcome, _ = self.read(shape)
            decode_s.append(time.thread_time() - began_s)
            if rows is not None:
                encode_s.append(self._timed_encode(rows))
            del rows
        return Cost(1e3 * median(decode_s), 1e3 * median(encode_s or [0.0]), outcome)

    def read(self, shape: Shape) -> tuple[Rows | None, str, int]:
        """Returns the body's rows or None, its outcome as text, and the bytes of the error response."""
        try:
            if shape.endpoint == "infer":
                rows: Rows = self._codec.decode(shape.body, shape.header_bytes).rows
            elif shape.endpoint == "rank":
                rows = self.decoder.rank(shape.body).rows
            else:
                rows = self.decoder.predict(shape.body)
        except (RequestError, FeatureError) as e:
            refused = error_response(e)
            said = json.loads(refused.body)["error"][:70]
            return None, f"{refused.status} {said}", len(refused.body)
        return rows, f"{rows.rows} rows", 0

    def _timed_encode(self, rows: Rows) -> float:
        began_s = time.thread_time()
        try:
            rows.encode(self._encoder)
        except FeatureError as e:
            error_response(e)
        return time.thread_time() - began_s


def step_costs(limit: int, times: int) -> Iterator[tuple[str, float]]:
    """Yields the longest decompression step, in ms, of bodies that are slow to decompress."""
    text = (b'{"user_id": "a17", "price": 84.5}, ' * limit)[:limit]
    noise = np.random.default_rng(0).bytes(limit)
    cases: tuple[tuple[str, bytes], ...] = (
        ("zeros", zlib.compress(bytes(limit))),
        ("a bomb of 100 MiB", zlib.compress(bytes(100 * 2**20))),
        ("JSON", zlib.compress(text)),
        ("noise", zlib.compress(noise)),
        ("Huffman tables", huffman_tables(limit // 29)),
    )
    for name, body in cases:
        longest = [_longest_step(body, limit) for _ in range(times)]
        yield f"deflate: {name}, {len(body)} bytes", 1e3 * median(longest)


def _longest_step(body: bytes, limit: int) -> float:
    inflater, longest_s, more = Inflater("deflate", limit), 0.0, True
    inflater.feed(body)
    try:
        while more:
            began_s = time.thread_time()
            try:
                more = inflater.step()
            finally:
                longest_s = max(longest_s, time.thread_time() - began_s)
    except RequestError:
        pass
    return longest_s


def main(args: list[str] | None = None, tell: Callable[[str], object] = print) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--schema", default="trivago")
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args(args)
    retain_freed_memory()
    sys.set_int_max_str_digits(MAX_DIGITS)
    schema, limits = load_schema(given.schema), Limits()
    reader = Reader(schema, limits)
    bounds = reader.decoder.body_limits
    gc.collect()
    gc.freeze()
    tell(f"{given.schema}: {limits.max_request_rows} rows, {bounds}")
    found = [(shape, reader.cost(shape, given.times)) for shape in shapes(schema, bounds.max_bytes, ROWS)]
    found.sort(key=lambda pair: -pair[1].decode_ms)
    tell(f"{'decode ms':>9} {'encode ms':>9} {'bytes':>9}")
    for shape, cost in found:
        name = f"{shape.name:<60}"
        tell(f"{cost.decode_ms:9.2f} {cost.encode_ms:9.2f} {len(shape.body):9d}  {name} {cost.outcome}")
    for name, took_ms in sorted(step_costs(bounds.max_bytes, given.times), key=lambda pair: -pair[1]):
        tell(f"{took_ms:9.2f} a step of {name}")


if __name__ == "__main__":
    main()
