"""Tiered storage of embedding rows: device memory, host memory, a file, a remote store.

A tier is a range of ranks of each table, hottest first (layout). Host rows and cached pages share one slab of
host memory, so that a batch is one gather whatever the tiers (slab). The file is read through a bounded cache
of pages and rows (disk), the remote store by one pipelined request per server (remote). Updated rows and new
row orders are overlaid first and written into the tiers in the background (updates). A stage sees
`rows.TieredRows`. Measurements are in docs/results/tiers.md.
"""
