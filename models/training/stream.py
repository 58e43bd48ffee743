"""Streams training rows in windows, so that only two windows are in memory.

A window of whole requests is read, encoded and shuffled as a whole. While steps are taken on it, a thread
reads and encodes the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from polyrec.models.data.altered_values import AlteredValues
from polyrec.models.data.encoded import encode_windows
from polyrec.models.data.reader import DataReader
from polyrec.models.data.split import Splitter
from polyrec.models.errors import DataError
from polyrec.models.progress import RowsDone
from polyrec.models.schema.encoder import Encoder
from polyrec.models.training.source import Rows

T = TypeVar("T")


class StreamedRows:
    """Training rows of the splits `which`, in windows of `window_rows` rows.

    A first pass over the columns of split and label counts rows and clicks; `progress` is called with the
    number of rows of each batch. Raises DataError if these splits have no rows.

    altered: counts of values that were replaced, of the windows read so far.
    """

    def __init__(
        self,
        reader: DataReader,
        encoder: Encoder,
        splitter: Splitter,
        which: Sequence[int],
        window_rows: int,
        progress: RowsDone,
    ) -> None:
        self._read = reader, encoder, splitter, which, window_rows
        label = encoder.schema.label
        rows = clicks = 0
        for data in reader.batches(list(dict.fromkeys((label.column, *encoder.schema.split.columns)))):
            wanted = np.isin(splitter(data), which)
            values = data.column(label.column).to_numpy(zero_copy_only=False)[wanted]
            rows += values.size
            clicks += int((values > label.positive_above).sum())
            progress(data.num_rows)
        if not rows:
            raise DataError(f"{reader.path}: the split leaves no train rows")
        self.size, self.base_rate = rows, clicks / rows
        self.altered = AlteredValues()
        self._counted = 0

    def windows(self, first: int = 0) -> Iterator[Rows]:
        """Yields the windows, starting at number `first`; earlier ones are read but not encoded."""
        for number, data in enumerate(ahead(encode_windows(*self._read, first=first)), first):
            if number >= self._counted:  # once, however many passes there are
                self.altered = AlteredValues.sum((self.altered, data.altered))
                self._counted = number + 1
            yield Rows(data, np.arange(data.rows))


def ahead(items: Iterator[T], count: int = 1) -> Generator[T]:
    """Yields the items; a thread computes the next `count` items while one is in use."""
    nothing = object()
    worker = ThreadPoolExecutor(1, "polyrec-read")
    try:
        following = deque(worker.submit(next, items, nothing) for _ in range(count))
        while (item := following.popleft().result()) is not nothing:
            following.append(worker.submit(next, items, nothing))
            yield item  # type: ignore[misc]
    finally:
        worker.shutdown(cancel_futures=True)
