"""Rows of the tables where they belong: device memory, host memory, a file, a remote store.

A tier is a range of ranks of each table, hot is a prefix (layout). What is read lands in one slab of host
memory (slab), so that a batch is one gather whatever the tiers; the file is read through a bounded cache of
its pages (disk, pages, ring), the remote store by one pipelined request (remote, resp). New values, and a
new order of the rows, are laid over the tiers and written into them behind the readers' backs (writer,
delta). `rows.TieredRows` is the store that a stage sees. docs/tiers.md has the figures.
"""
