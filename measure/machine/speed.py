"""Measures the CPU and its memory: copies, random rows, products; a fraction of a second each.

The best of several passes counts, because other processes can only slow the machine down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

PASS_S = 0.04
PASSES = 6
COPIED = 64 * 2**20
TABLE = 256 * 2**20
ROW = 64
MAX_THREADS = 32
"""Maximum threads: a few cores saturate the memory channels."""


def copy_bandwidth(lanes: int, memory: int) -> float:
    """Measures the bytes/s that all lanes together read and write, in copies larger than the caches."""
    threads = min(lanes, MAX_THREADS)
    size = _affordable(COPIED, memory, 2 * threads) // 8
    pairs = [(np.ones(size), np.ones(size)) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        np.copyto(pair[1], pair[0])

    # numpy releases the GIL while it copies, so the threads run in parallel
    with ThreadPoolExecutor(threads) as pool:
        return 2 * 8 * size * threads * best_rate(lambda: list(pool.map(copy, pairs)))


def gathers(memory: int) -> float:
    """Measures the random 64-byte rows per second that one lane reads from a table larger than the caches."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = _affordable(TABLE, memory, 1) // ROW
        table = torch.ones((rows, ROW // 4))
        index = torch.randint(0, rows, (65536,), generator=torch.Generator().manual_seed(0))
        out = torch.empty((index.numel(), ROW // 4))
        return index.numel() * best_rate(lambda: torch.index_select(table, 0, index, out=out))
    finally:
        torch.set_num_threads(before)


def products(onnx: bool) -> float:
    """Measures one lane's fp32 FLOP/s in a product of typical layer size, with the faster runtime."""
    m, k, n = 256, 512, 512
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    rates = [_torch_rate(a, b)]
    if onnx:
        from polyrec.models.runtimes.kinds.onnx import open_session
        from polyrec.models.runtimes.onnx_graph import product_graph

        session = open_session(product_graph(), "cpu")
        rates.append(best_rate(lambda: session.run(None, {"a": a, "b": b})))
    return 2 * m * k * n * max(rates)


def _torch_rate(a: np.ndarray, b: np.ndarray) -> float:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.from_numpy(a), torch.from_numpy(b)
        return best_rate(lambda: left @ right)
    finally:
        torch.set_num_threads(before)


def best_rate(work: Callable[[], object]) -> float:
    """Returns the calls of `work` per second in the best of several passes, after a warm-up call."""
    work()
    rates = []
    for _ in range(PASSES):
        start, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - start < PASS_S:
            work()
            calls += 1
        rates.append(calls / (time.perf_counter() - start))
    return max(rates)


def _affordable(wanted: int, memory: int, copies: int) -> int:
    """Returns `wanted` bytes, or less if this many copies would exceed an eighth of the memory."""
    return min(wanted, max(2**20, memory // 8 // copies)) if memory else wanted
