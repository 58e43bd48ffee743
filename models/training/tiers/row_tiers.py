"""Places a training's rows: hot prefixes in memory, the others in a file with a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from polyrec.models.amounts import size
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.embeddings.table import TableStage, initial_rows
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.training.tiers.resident import ROWS_AT_ONCE, ResidentRows
from polyrec.models.training.tiers.row_file import RowFile
from polyrec.models.training.tiers.slots import SLOT_BYTES
from polyrec.models.training.tiers.stage import ResidentStage
from polyrec.models.training.tiers.undo_log import UndoLog

CACHE_SHARE = 0.25
"""Share of the memory for the cache, if not all rows fit."""
BUFFER_SHARE, MAX_BUFFER_BYTES = 1 / 16, 2**24
CHANGED_BYTES = 1
"""Memory for each row in addition to its record: whether it has changed."""


@dataclass(frozen=True, slots=True)
class MemoryDivision:
    """A division of memory. prefix: rows, over all tables, that are always in memory. slots: slots of the
    cache.
    """

    prefix: int
    slots: int
    buffer_bytes: int


def divide_memory(memory_bytes: int, rows: int, record_bytes: int) -> MemoryDivision:
    """Divides memory between hot prefixes, the cache and the buffer of reads and writes.

    record_bytes: bytes of a row in memory with its optimizer state. Raises DataError if no row fits.
    """
    buffer = min(int(memory_bytes * BUFFER_SHARE), MAX_BUFFER_BYTES)
    each = record_bytes + CHANGED_BYTES
    if rows * each <= memory_bytes - buffer:
        return MemoryDivision(rows, 0, buffer)
    slots = int(memory_bytes * CACHE_SHARE / (each + SLOT_BYTES))
    prefix = int((memory_bytes - buffer - slots * (each + SLOT_BYTES)) // each)
    if not slots or prefix < 0:
        raise DataError(f"--memory {size(memory_bytes)} holds no row of {record_bytes} bytes")
    return MemoryDivision(prefix, min(slots, rows - prefix), buffer)


class RowTiers:
    """Creates and removes the tiers of a command's trainings.

    memory_bytes: memory for rows, their optimizer state and index; the net, batches and the vocabulary take
    additional memory.
    folder: folder for the files of rows, on a local disk.
    """

    def __init__(self, memory_bytes: int, folder: Path) -> None:
        self.memory_bytes, self.folder = memory_bytes, folder
        self._logs: dict[str, UndoLog] = {}

    def stage(
        self,
        run: str,
        schema: Schema,
        vocabularies: Mapping[str, Vocabulary],
        width: int,
        squares: int,
        seed: int,
        spread: float | None,
    ) -> ResidentStage:
        """Creates a stage with the rows of `TableStage.initial`.

        run: FIT or REFIT, which names the file. squares: accumulators per row. Raises DataError as
        `divide_memory` does.
        """
        rows = FusedRows(schema, {t: v.rows for t, v in vocabularies.items()})
        division = divide_memory(self.memory_bytes, rows.total, 4 * (width + squares))
        file = RowFile(self.folder / f"{run}.rows", rows.total, width, squares, division.buffer_bytes)
        self._logs[run] = UndoLog(file)

        def initial() -> Iterator[F32]:
            for part in initial_rows(rows, width, seed, spread):
                yield part.numpy()

        cuts = stored_within(vocabularies, division.prefix)
        resident = ResidentRows(rows, cuts, division.slots, self._logs[run], initial)
        slots = PerBlock(len(schema.context.categorical), len(schema.candidate.categorical))
        return ResidentStage(rows, slots, resident)

    def whole(self, model: DLRM, schema: Schema) -> DLRM:
        """Returns an ordinary model of all rows, memory-mapped from an unlinked file."""
        stage = model.stage
        assert isinstance(stage, ResidentStage)
        resident, tables = stage.resident, dict(zip(stage.rows.tables, stage.rows.sizes, strict=True))
        path = self.folder / "whole.rows"
        with path.open("wb") as file:
            for start in range(0, resident.total, ROWS_AT_ONCE):
                rows = np.arange(start, min(start + ROWS_AT_ONCE, resident.total))
                file.write(resident.read(rows).data)
        count = resident.total * resident.width
        weight = torch.from_file(str(path), shared=True, size=count, dtype=torch.float32)
        path.unlink()
        return DLRM(TableStage(schema, tables, weight.view(-1, resident.width)), model.net)

    def remove(self) -> None:
        """Removes the files of all trainings."""
        for log in self._logs.values():
            log.remove()
        self._logs = {}
