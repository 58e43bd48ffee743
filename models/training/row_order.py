"""Orders the rows that training draws: row by row, or request by request.

Shuffled rows are the least correlated, but a batch of them has almost as many contexts as rows. Drawing whole
requests in random order keeps a request's rows in one batch, where its context is looked up, computed and
differentiated once (RecD, MLSys'23, section 4.3, clusters batches by session for this).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyrec.models.schema.batch import I64


def epoch(rows: I64, group: I64 | None, batch_rows: int, random: np.random.Generator) -> Iterator[I64]:
    """Yields every row once, in batches; each batch is in ascending order.

    rows: int64, indices of the rows to draw.
    group: None to draw rows independently, `batch_rows` at a time; or int64, the request of each row of the
    data, to draw whole requests. Batch b then takes the requests that begin within rows b * batch_rows ... (b
    + 1) * batch_rows - 1 of the epoch, about `batch_rows` rows.
    """
    if group is None:
        order = random.permutation(rows)
        for start in range(0, order.size, batch_rows):
            yield np.sort(order[start : start + batch_rows])
        return
    _, request, sizes = np.unique(group[rows], return_inverse=True, return_counts=True)
    drawn = random.permutation(sizes.size)
    place = np.empty_like(drawn)
    place[drawn] = np.arange(drawn.size)
    ends = np.cumsum(sizes[drawn])
    batch = (ends - sizes[drawn]) // batch_rows
    cuts = ends[np.flatnonzero(np.diff(batch))]
    for chosen in np.split(rows[np.argsort(place[request], kind="stable")], cuts):
        yield np.sort(chosen)
