"""Takes the steps of one training with several workers.

Every worker draws the same batches and takes its share of each, in whole requests if batches consist of whole
requests. The gradients of the dense net are summed over the workers, those of rows by their owners
(models/training/workers/row_exchange.py); their sum is the gradient of the whole batch, up to the order of
floating-point additions. In Hotline's scheme (Adnan et al., ISCA'24), a worker splits its share into rows
whose lookups are all replicated and other rows; a thread fetches for the latter while the former are
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.embeddings.stage import Stage
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.models.training.optimizer import RowWiseAdagrad
from polyrec.models.training.row_order import epoch
from polyrec.models.training.source import Rows
from polyrec.models.training.workers.group import WorkerGroup, split
from polyrec.models.training.workers.phases import Phases, hot_rows_of, whole_requests
from polyrec.models.training.workers.popularity import PopularityTracker
from polyrec.models.training.workers.settings import WorkerSettings
from polyrec.models.training.workers.stage import ShardedStage

Draw = Callable[[I64], Batch]
LossOf = Callable[[Batch, I64], Tensor]


class Workers:
    """One worker of a command's trainings. Close it, or use it in a `with` block.

    tracker: chooses the replicated rows if they follow popularity; replicated: otherwise, their number by
    table.
    pairs: the owned and the replicated part of the rows, and of each of their accumulators.
    """

    def __init__(self, group: WorkerGroup, settings: WorkerSettings) -> None:
        self.group, self.settings = group, settings
        self._fetcher = ThreadPoolExecutor(1, "polyrec-fetch")
        self._phases = Phases()
        self._hot_of: tuple[Rows, NDArray[np.bool_]] | None = None
        self.tracker: PopularityTracker | None = None
        self.replicated: Mapping[str, int] = {}
        self._steps = 0

    @property
    def rank(self) -> int:
        return self.group.rank

    def close(self) -> None:
        self._fetcher.shutdown()
        self.group.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def sharded(self, model: DLRM, vocabularies: Mapping[str, Vocabulary]) -> DLRM:
        """Returns the model with this worker's part of the rows, and the same net.

        Raises DataError if it is not a table representation, or the settings do not fit the tables.
        """
        table = model.stage
        if not isinstance(table, TableStage):
            raise DataError("several workers train the representation `table` only")
        planned = self.settings.replicated
        if planned is not None:
            require_cuts(planned, vocabularies)
        hot, max_hot_rows = None, 0
        self.tracker, self.replicated = None, {}
        if self.settings.scheme != "plain":
            rows = min(self.settings.hot_bytes // (4 * table.width), table.rows.total)
            if self.settings.follow:
                self.tracker, max_hot_rows = PopularityTracker(rows, table.rows.total), rows
            else:
                self.replicated = stored_within(vocabularies, rows) if planned is None else planned
                hot = hot_prefix(table, vocabularies, self.replicated)
        return DLRM(ShardedStage(table, self.group, hot, self.settings.distinct, max_hot_rows), model.net)

    def whole(self, model: DLRM, table: Stage) -> DLRM:
        """Returns an ordinary model with all rows, in `table`. Call it after `settle` or a check."""
        (weight,) = table.sparse_parameters()
        with torch.no_grad():
            weight.copy_(_stage(model).rows.whole())
        return DLRM(table, model.net)

    def record(self) -> dict[str, Any]:
        """Returns the number of workers, their exchange scheme and the replicated rows; JSON-serializable."""
        return {
            "number": self.group.size,
            "exchange": self.settings.scheme,
            "distinct": self.settings.distinct,
            "follow_popularity": self.settings.follow,
            "replicated": dict(self.replicated),
        }

    def begin(self, model: DLRM, sparse: RowWiseAdagrad) -> None:
        """Begins a training of a sharded model, whose rows `sparse` updates."""
        self._model, self._stage = model, _stage(model)
        self._dense = [*model.net.parameters()]
        # pairs of shard and replicas, block by block
        accumulators = sparse.accumulators()
        blocks = len(accumulators) // 2
        self.pairs = [
            (self._stage.shard.data, self._stage.replicas.data),
            *zip(accumulators[:blocks], accumulators[blocks:], strict=True),
        ]
        self._phases = Phases()
        self._hot_of = None
        self._steps = 0

    def epoch(
        self, window: Rows, group: I64 | None, batch_rows: int, random: np.random.Generator
    ) -> Iterator[I64]:
        """Yields the batches of a window, the same on every worker; see models/training/row_order.py."""
        if self.settings.scheme != "fae":
            yield from epoch(window.rows, group, batch_rows, random)
            return
        if self.tracker and self._steps:
            self._replicate_popular(self.tracker)
        if self._hot_of is None or self._hot_of[0] is not window:
            self._hot_of = window, hot_rows_of(self._stage, window, group)
        hot = self._hot_of[1]
        cold_batches = list(epoch(window.rows[~hot], group, batch_rows, random)) if not hot.all() else []
        hot_batches = list(epoch(window.rows[hot], group, batch_rows, random)) if hot.any() else []
        for is_hot, chosen in self._phases.interleave(cold_batches, hot_batches):
            self._stage.rows.switch(is_hot, self.pairs)
            self._stage.local = is_hot
            yield chosen

    def _replicate_popular(self, tracker: PopularityTracker) -> None:
        """Replicates the rows that are popular now."""
        self._stage.rows.replicate(tracker.choose(self.group), self.pairs)
        self._hot_of = None

    def settle(self) -> None:
        """Copies replicated rows to their owners, so that the owners hold the current state."""
        self._stage.rows.settle(self.pairs)

    def share(self, chosen: I64, group: I64 | None) -> I64:
        """Returns this worker's rows of a batch: one W-th, cut between requests."""
        size, rank = self.group.size, self.group.rank
        cuts = np.arange(size + 1) * chosen.size // size
        if group is not None:
            request = group[chosen]
            ends = np.concatenate(([0], np.flatnonzero(np.diff(request)) + 1, [chosen.size]))
            cuts = ends[np.searchsorted(ends, cuts)]
        return chosen[cuts[rank] : cuts[rank + 1]]

    def backward(self, chosen: I64, group: I64 | None, draw: Draw, loss_of: LossOf) -> float:
        """Computes the gradients of the mean loss over the batch `chosen`; returns that loss.

        draw: returns the batch of given rows. loss_of: returns the mean loss of a batch of given rows.
        """
        tracker = self.tracker
        if tracker and self.settings.scheme == "hotline" and tracker.is_choice_step(self._steps):
            self._replicate_popular(tracker)
        own = self.share(chosen, group)
        total = torch.zeros((), device=self._stage.rows.device, dtype=self._stage.shard.dtype)
        if not own.size:
            self._stage.join()
        for batch, rows in self._micro_batches(own, group, draw) if own.size else ():
            loss = loss_of(batch, rows) * (rows.size / chosen.size)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._stage.push()
        self._steps += 1
        return self._sum_dense(total)

    def _micro_batches(self, own: I64, group: I64 | None, draw: Draw) -> Iterator[tuple[Batch, I64]]:
        stage = self._stage
        batch = draw(own)
        if not self.settings.distinct:
            batch = batch.exploded()
        if self.tracker and self.tracker.counts_step(self._steps):
            self.tracker.add(stage.table_rows.lookups(batch).rows())
        if self.settings.scheme != "hotline":
            yield batch, own
            return
        hot = stage.hot_rows_of(batch)
        if group is not None:
            hot = whole_requests(hot, group[own])
        popular, rest = np.flatnonzero(hot), np.flatnonzero(~hot)
        others = take_rows(batch, rest) if rest.size else None
        lookups = stage.table_rows.lookups(others).rows() if others else rest
        fetching = self._fetcher.submit(stage.rows.fetch, lookups)
        if popular.size:
            stage.local = True
            yield take_rows(batch, popular), own[popular]
            stage.local = False
        stage.ahead = fetching.result()
        if others:
            yield others, own[rest]
        else:
            stage.join()

    def _sum_dense(self, loss: Tensor) -> float:
        """Sums the gradients of the net and the loss over all workers."""
        for weight in self._dense:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        gradients = [_gradient(weight) for weight in self._dense]
        flat = torch.cat((*(g.reshape(-1) for g in gradients), loss.to(gradients[0].dtype).reshape(1)))
        self.group.sum(flat)
        for gradient, summed in zip(gradients, split(flat[:-1], [g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))
        return float(flat[-1])

    def checked_rows(self, rows: I64) -> I64:
        """Returns the rows that this worker predicts in a check: equally many on every worker, some twice."""
        self.settle()
        self._stage.local = False
        each = -(-rows.size // self.group.size)
        return rows[np.minimum(np.arange(each) + self.rank * each, rows.size - 1)]

    def gathered(self, own: F32, rows: int) -> F32:
        """Joins what the workers computed for `checked_rows`, float32 [..., rows]."""
        parts = self.group.gather(torch.from_numpy(np.ascontiguousarray(own)).to(self._stage.rows.device))
        found: F32 = np.concatenate([part.cpu().numpy() for part in parts], axis=-1)
        return found[..., :rows]

    def checked(self, log_loss: float) -> None:
        """Adapts FAE's schedule to the validation loss of a check."""
        self._phases.checked(log_loss)


def hot_prefix(
    table: TableStage, vocabularies: Mapping[str, Vocabulary], cuts: Mapping[str, int]
) -> NDArray[np.bool_]:
    """Returns which rows of the fused weight are replicated, bool [rows]: `cuts` of each table.

    The rows of unknown and missing ids are replicated too, since a training step may hide any id.
    """
    hot = np.zeros(table.rows.total, bool)
    for name, base in table.rows.base.items():
        hot[base : base + cuts.get(name, 0)] = True
        for rank in (vocabularies[name].oov_rank, vocabularies[name].missing_rank):
            if rank >= 0:
                hot[base + rank] = True
    return hot


def require_cuts(cuts: Mapping[str, int], vocabularies: Mapping[str, Vocabulary]) -> None:
    """Raises DataError if planned cuts (table -> number of rows) do not fit these tables."""
    if set(cuts) != set(vocabularies):
        tables = f"{', '.join(cuts)}, the model has {', '.join(vocabularies)}"
        raise DataError(f"the plan is of the tables {tables}")
    for name, rows in cuts.items():
        of = vocabularies[name].rows
        if rows > of:
            raise DataError(
                f"the plan replicates {rows:,} of the {of:,} rows of table '{name}': plan with the file of "
                "--calibration"
            )


def take_rows(batch: Batch, rows: I64) -> Batch:
    """Returns some rows of a batch, with their contexts."""
    candidate = batch.candidate.take(rows)
    if batch.context_row is None:
        return Batch(batch.context.take(rows), candidate)
    contexts, row = np.unique(batch.context_row[rows], return_inverse=True)
    return Batch(batch.context.take(contexts), candidate, row)


def _stage(model: DLRM) -> ShardedStage:
    assert isinstance(model.stage, ShardedStage)
    return model.stage


def _gradient(weight: Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad
