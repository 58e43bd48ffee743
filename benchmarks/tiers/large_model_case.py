"""One case of benchmarks/tiers/large_model.py, in a process of its own under its own memory limit: JSON in,
JSON out."""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from benchmarks.tiers.generated_model import (
    LARGE,
    WIDTH,
    GeneratedModel,
    Queries,
    model,
    right,
    rows,
    rows_at,
    zipf_share,
)
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, dense_slots, inputs_of
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.onnx_graph import plain_graph
from polyrec.models.tiers.disk.cache_room import divide
from polyrec.models.tiers.disk.disk import DiskTier
from polyrec.models.tiers.disk.page_file import sector_bytes
from polyrec.models.tiers.layout import HOST, TierLayout
from polyrec.models.tiers.opening import fill
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.slab import Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_set import TierSet

PAGE = 4096
FORM = RowFormat(WIDTH, "fp32")
AHEAD = 2
"""Batches between a prefetch and its look-up: what waits in the queue."""

clock = time.perf_counter


def prefix_rows(m: GeneratedModel, budget: int, cache: int) -> int:
    """Rows of each large table in host memory: all small tables and the cache come first.

    All large tables have the same law, so one threshold gives each of them the same rows.
    """
    small = sum(n for t, n in m.tables.items() if t not in m.large)
    return int((budget - cache - small * FORM.bytes) // (LARGE * FORM.bytes))


def tiered(case: dict[str, Any], m: GeneratedModel) -> TieredRows:
    """Opens tiers over the file as it is, instead of writing 20 GB once more."""
    cut = prefix_rows(m, case["budget"], case["cache"])
    layout = TierLayout(m.tables, {t: (0, cut, m.large_rows - cut, 0) for t in m.large})
    page_bytes = sector_bytes(Path(case["file"]).parent)
    room = divide(case["cache"], FORM.bytes, page_bytes, layout.file_rows, layout.rows[HOST], 0)
    slab = Slab(FORM, layout.rows[HOST] + room.slots, room.pages, page_bytes)
    fill(slab.row_bytes(), layout, HOST, rows)
    disk = DiskTier(Path(case["file"]), slab, layout.file_rows, layout.rows[HOST], reader=case.get("reader"))
    if case["exponent"]:
        _keep_next(disk, m, cut)
    return TieredRows(TierStack(TierSet(layout, slab, disk=disk)))


def _keep_next(disk: DiskTier, m: GeneratedModel, cut: int) -> None:
    """Fills the cache with the rows next in popularity, as opening a bundle does."""
    next_ = np.arange(cut, min(cut + disk.row_cache.slots // LARGE, m.large_rows))
    # the file begins with the large tables, as the fused weight does
    local = (next_[:, None] + np.arange(LARGE) * m.large_rows).ravel()
    disk.keep(local, lambda which: rows_at(local[which]))


def mapped(case: dict[str, Any], m: GeneratedModel) -> torch.Tensor:
    """The whole weight as one map of the file, which ends with the small tables."""
    file = os.open(case["file"], os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    memory = mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    if case["advice"] == "random":
        memory.madvise(mmap.MADV_RANDOM)
    flat = np.frombuffer(memory, np.uint8)
    cut = prefix_rows(m, case["budget"], 0)
    for i in range(LARGE):
        # as warm as it can be: the hottest rows are in memory before the first query
        start = i * m.large_rows * FORM.bytes
        for at in range(start, start + cut * FORM.bytes, 64 << 20):
            flat[at : min(at + (64 << 20), start + cut * FORM.bytes) : PAGE].sum()
    return torch.from_numpy(flat).view(torch.float32).view(-1, WIDTH)


def in_memory(m: GeneratedModel) -> torch.Tensor:
    weight = torch.empty(sum(m.tables.values()), WIDTH)
    flat = weight.view(torch.uint8).numpy()
    for start in range(0, len(flat), 1 << 16):
        count = min(1 << 16, len(flat) - start)
        flat[start : start + count] = rows(start, count)
    return weight


class Prefetcher:
    """Reads ahead for the lane in a thread, on the other cores.

    It is handed batches when the dense net begins, which needs no interpreter: two threads that look rows up
    at the same time would wait for each other's Python.
    """

    def __init__(self, store: TieredRows, stage: TableStage, queries: Queries, core: int | None) -> None:
        self._store, self._stage, self._queries = store, stage, queries
        self._others = os.sched_getaffinity(0) if core is None else set(range(os.cpu_count() or 1)) - {core}
        self.wanted: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        os.sched_setaffinity(0, self._others)
        while (number := self.wanted.get()) is not None:
            self._store.prefetch(self._stage.rows.lookups(self._queries.batch(number)).rows())

    def close(self) -> None:
        self.wanted.put(None)
        self._thread.join()


def run(case: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    if case.get("core") is not None:
        os.sched_setaffinity(0, {case["core"]})
    if case.get("first"):
        # on a machine that others work on at the same time: what is measured runs before them. Not in the
        # real-time class, which would also run before the kernel's threads that end a read.
        os.setpriority(os.PRIO_PROCESS, 0, -19)
    m = model(case["large_rows"])
    tables = m.tables
    store: TieredRows | FloatRows
    cut = m.large_rows
    if case["kind"] == "tiers":
        store = tiered(case, m)
        cut = prefix_rows(m, case["budget"], case["cache"])
        stage = TableStage.over(m.schema, tables, store)
    else:
        store = FloatRows(mapped(case, m) if case["kind"] == "mmap" else in_memory(m))
        stage = TableStage.over(m.schema, tables, store)  # type: ignore[arg-type]
    net = DenseNet(
        Architecture(width=WIDTH, bottom=(512, 256), top=(512, 256), interaction="dot"),
        dense_slots(m.schema),
        stage.slots,
    )
    session = open_session(plain_graph(net.eval()).SerializeToString(), "cpu")
    names = [i.name for i in session.get_inputs()]
    queries = Queries(m, case["exponent"], case["batches"], case["batch_rows"], case.get("cold"))
    warm = len(queries) // 5
    prefetch = case.get("prefetch")
    ahead = AHEAD if prefetch else 0
    thread = None
    if prefetch == "thread" and isinstance(store, TieredRows):
        thread = Prefetcher(store, stage, queries, case.get("core"))
    embed_s: list[float] = []
    took_s: list[float] = []
    before = None
    begin = started = clock()
    cpu = time.process_time()
    with torch.inference_mode():
        for number in range(len(queries) - ahead):
            if number == warm or (number < warm and clock() - started > case["seconds"] / 2 and not embed_s):
                before = store.stack.figures() if isinstance(store, TieredRows) else None
                embed_s, took_s, begin, cpu = [], [], clock(), time.process_time()
                warm = number
            if prefetch == "lane":
                upcoming = queries.batch(number + ahead)
                store.prefetch(stage.rows.lookups(upcoming).rows())  # type: ignore[union-attr]
            batch = queries.batch(number)
            start = clock()
            vectors = stage(batch)
            middle = clock()
            if thread is not None:
                thread.wanted.put(number + ahead)
            inputs = inputs_of(batch, vectors)
            session.run(None, {name: getattr(inputs, name).numpy() for name in names})
            end = clock()
            if number >= warm:
                embed_s.append(middle - start)
                took_s.append(end - start)
                if end - begin > case["seconds"]:
                    break
        wall_s, cpu_s = clock() - begin, time.process_time() - cpu
        if thread is not None:
            thread.close()
        index = stage.rows.lookups(queries.batch(0)).singles
        checked = right(store.gather(torch.from_numpy(index)).numpy(), index)
    done = len(took_s) * case["batch_rows"]
    result = {
        "rows_per_s": done / wall_s,
        "embed_rows_per_s": done / sum(embed_s),
        "p50_ms": float(np.percentile(took_s, 50)) * 1e3,
        "p99_ms": float(np.percentile(took_s, 99)) * 1e3,
        "embed_p50_ms": float(np.percentile(embed_s, 50)) * 1e3,
        "cpu_ms_a_batch": cpu_s / len(took_s) * 1e3,
        "batches": len(took_s),
        "rows_right": checked,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if isinstance(store, TieredRows) and before is not None:
        after = store.stack.figures()
        level = {k: after.levels[k].lookups - before.levels[k].lookups for k in after.levels}
        hits = {k: after.levels[k].hits - before.levels[k].hits for k in after.levels}
        page_bytes = store.stack.tiers.slab.page_bytes
        pages = (after.levels["disk"].bytes - before.levels["disk"].bytes) // page_bytes
        result |= {
            "host_rows_of_each_large_table": cut,
            "large_lookups_in_prefix": zipf_share(m.large_rows, case["exponent"], cut)
            if not case.get("cold")
            else 0.0,
            "large_lookups_beyond_prefix": level["cache"] / (len(took_s) * case["batch_rows"] * LARGE),
            "cache_hit_rate": hits["cache"] / max(level["cache"], 1),
            "pages_read_per_s": (pages + after.prefetched_pages - before.prefetched_pages) / wall_s,
            "reader": store.stack.tiers.disk.reader,  # type: ignore[union-attr]
            "direct": store.stack.tiers.disk.direct,  # type: ignore[union-attr]
        }
        store.stack.close()
    return result


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given.get("cgroup"):
        Path(given["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps(run(given)))
