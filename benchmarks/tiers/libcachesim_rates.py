"""Computes hit rates of libcachesim's policies for lookups in a file; prints JSON. Needs libcachesim.

    PYTHON benchmarks/tiers/libcachesim_rates.py TRACE.npz SIZE ...

TRACE.npz: `calibrated` and `lookups`, int64 rows. The former warm up each cache; hits are counted on the
latter.
"""

from __future__ import annotations

import json
import sys
import tempfile

import libcachesim
import numpy as np

POLICIES = {"lru": "LRU", "w-tinylfu": "WTinyLFU", "s3-fifo": "S3FIFO"}


def main() -> None:
    trace, sizes = np.load(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    found: dict[str, list[float]] = {}
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        np.savetxt(file.name, np.concatenate((trace["calibrated"], trace["lookups"])) + 1, fmt="%d")
        settings = libcachesim.ReaderInitParam(ignore_obj_size=True)
        reader = libcachesim.TraceReader(file.name, libcachesim.TraceType.PLAIN_TXT_TRACE, settings)
        for name, kind in POLICIES.items():
            found[name] = []
            for size in sizes:
                cache = getattr(libcachesim, kind)(size, hashpower=18)
                cache.process_trace(reader, 0, trace["calibrated"].size)
                missed, _ = cache.process_trace(reader, trace["calibrated"].size, -1)
                found[name].append(1 - missed)
    print(json.dumps({"version": libcachesim.__version__, "rates": found}))


if __name__ == "__main__":
    main()
