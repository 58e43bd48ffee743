"""Stores embedding rows in tiers: device memory, host memory, a file, a remote store.

A tier is a range of ranks of each table, hottest first (`layout`). Host rows and cached pages share one slab
of host memory, so that a batch is one gather whichever tiers it uses (`slab`). The file is read through a
bounded cache of pages and rows (`disk`), the remote store by one pipelined request per server (`remote`).
Updated rows and new row orders are first overlaid, then written into the tiers in the background (`updates`).
An embedding stage only sees `rows.TieredRows`. For measurements, see docs/results/tiers.md.
"""
