from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from polyrec.models.tiers.disk.reads import PageReader, open_reader
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_settings import ReaderKind

PAGE = 4096
PAGES = 3000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("reads") / "pages"
    numbers = np.repeat(np.arange(PAGES, dtype=np.int64), PAGE // 8)
    path.write_bytes(numbers.tobytes())
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def opened(file: int, kind: ReaderKind, pages: int) -> tuple[PageReader, Bytes]:
    memory = np.zeros(pages * PAGE, np.uint8)
    try:
        return open_reader(file, memory, kind), memory
    except OSError as e:
        pytest.skip(f"this machine has no {kind}: {e}")


def numbers(memory: Bytes) -> np.ndarray:
    pages: np.ndarray = memory.view(np.int64).reshape(-1, PAGE // 8)
    assert (pages == pages[:, :1]).all()
    return pages[:, 0]


@pytest.mark.parametrize("kind", ["io_uring", "threads"])
def test_a_batch_larger_than_the_queue_is_read_correctly(file: int, kind: ReaderKind) -> None:
    reader, memory = opened(file, kind, 5000)
    wanted = np.random.default_rng(0).integers(0, PAGES, 5000)
    places = np.random.default_rng(1).permutation(5000)
    ticket = reader.submit(wanted * PAGE, places * PAGE, PAGE)
    reader.wait(ticket)
    assert ticket not in reader.under_way()
    assert (numbers(memory)[places] == wanted).all()
    assert reader.submit(wanted[:0], places[:0], PAGE) == 0
    reader.wait(0)
    reader.close()


@pytest.mark.parametrize("kind", ["io_uring", "threads"])
def test_a_read_beyond_the_end_fails_only_its_ticket(file: int, kind: ReaderKind) -> None:
    reader, memory = opened(file, kind, 4)
    good = reader.submit(np.array([0, PAGE]), np.array([0, PAGE]), PAGE)
    bad = reader.submit(np.array([PAGE, PAGES * PAGE]), np.array([2 * PAGE, 3 * PAGE]), PAGE)
    reader.wait(good)
    for _ in range(2):
        with pytest.raises(OSError, match="page"):
            reader.wait(bad)
    assert bad not in reader.under_way()
    assert numbers(memory)[:3].tolist() == [0, 1, 1]
    reader.close()


@pytest.mark.parametrize("kind", ["io_uring", "threads"])
def test_threads_share_a_reader(file: int, kind: ReaderKind) -> None:
    """Each thread waits for its own reads while others take completions; none is left asleep."""
    reader, memory = opened(file, kind, 4 * 64)
    wrong: list[int] = []

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        places = number * 64 + np.arange(64)
        for _ in range(100):
            count = int(random.integers(1, 65))
            wanted = random.integers(0, PAGES, count)
            ticket = reader.submit(wanted * PAGE, places[:count] * PAGE, PAGE)
            reader.wait(ticket)
            got = memory.view(np.int64).reshape(-1, PAGE // 8)[places[:count], 0]
            wrong.append(int((got != wanted).sum()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 400
    assert not any(wrong)
    reader.close()
