from __future__ import annotations

import zlib

import pytest

from benchmarks.http.body_cost import ROWS, Reader, Shape, huffman_tables, shapes
from polyrec.models.schema.schema import load_schema
from polyrec.planner.plan import Limits
from polyrec.server.errors import MESSAGE_LENGTH

LIMITS = Limits()


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(load_schema("trivago"), LIMITS)


@pytest.fixture(scope="module")
def bodies(reader: Reader) -> list[Shape]:
    size = reader.decoder.body_limits.max_bytes
    return list(shapes(load_schema("trivago"), size, ROWS))


def test_every_body_is_within_the_limit_and_most_are_as_large(reader: Reader, bodies: list[Shape]) -> None:
    size = reader.decoder.body_limits.max_bytes
    assert all(len(shape.body) <= size for shape in bodies)
    assert sum(len(shape.body) > 0.9 * size for shape in bodies) > len(bodies) / 2
    assert len({shape.name for shape in bodies}) == len(bodies)


def test_every_body_is_decoded_or_an_error_of_one_short_line(reader: Reader, bodies: list[Shape]) -> None:
    for shape in bodies:
        rows, outcome, length = reader.read(shape)
        if rows is None:
            assert outcome[:3] in ("400", "413", "422"), shape.name
            assert length < 6 * MESSAGE_LENGTH
        else:
            assert rows.rows <= LIMITS.max_request_rows, shape.name


def test_blocks_of_huffman_tables_are_valid_and_empty() -> None:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    assert stream.decompress(huffman_tables(1000)) == b""
    assert not stream.unused_data
