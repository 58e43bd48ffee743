"""The model of benchmarks/gpu/lookup.py: 26 tables of equal rows, the hotter half of each on the device.

Batches have an exact share of lookups in device memory, so that hit rates are exact. `lookup_variants`
describes the variants of the lookup, which all give the same vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs, dense_slots, inputs_of
from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.stage import PerBlock, Vectors
from polyrec.models.embeddings.store import as_index, quantize
from polyrec.models.embeddings.table import TableStage
from polyrec.models.runtimes.buckets import Buckets
from polyrec.models.schema.batch import Batch, Block
from polyrec.models.schema.schema import load_schema
from polyrec.models.tiers.device.fused import FusedLookups
from polyrec.models.tiers.device.transfer_costs import COPIED, DIRECT
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.transfer import on_device

WIDTH = 64
Predict = Callable[[Batch], Any]


class GpuModel:
    """One model with all rows on the host, all on the device, or in tiers. rows: of each table."""

    def __init__(self, device: torch.device, rows: int, precision: Precision = "fp32") -> None:
        generator = torch.Generator().manual_seed(0)
        self.schema = load_schema("criteo")
        self.tables = {t: rows for t in self.schema.tables}
        self.device_rows, self.rows, self.device = rows // 2, rows, device
        self.row_format = RowFormat(WIDTH, precision)
        self.random = np.random.default_rng(0)
        self.weight = quantize(torch.randn(sum(self.tables.values()), WIDTH, generator=generator), precision)
        cuts = {t: {"device": self.device_rows, "host": rows - self.device_rows} for t in self.tables}
        self.stack = open_stack(
            rows_of_weight(self.weight, self.row_format, self.tables),
            TierSettings.model_validate({"cuts": cuts}),
            device=device,
        )
        torch.manual_seed(0)
        shape = Architecture(width=WIDTH, bottom=(512, 256), top=(512, 256), interaction="dot")
        net = DenseNet(shape, dense_slots(self.schema), PerBlock(0, len(self.tables)))
        self.net = ContextOnce(net).eval().to(device)
        self.buckets = Buckets(self.net, device, torch.float32, capture=device.type == "cuda")

    def batch(self, rows: int, hit: float) -> Batch:
        """Draws rows whose lookups are in device memory with a given probability, uniform within it."""
        shape = rows, len(self.tables)
        hot = self.random.integers(0, self.device_rows, shape)
        cold = self.random.integers(self.device_rows, self.rows, shape)
        ranks = np.where(self.random.random(shape) < hit, hot, cold)
        dense = self.random.normal(size=(rows, len(self.schema.dense))).astype(np.float32)
        empty, none = np.empty(0, np.int64), np.zeros(1, np.int64)
        context = Block(np.empty((rows, 0), np.float32), np.empty((rows, 0), np.int64), empty, none)
        return Batch(context, Block(dense, ranks, empty, none))

    def flat(self, device: torch.device | str) -> TableStage:
        """Returns all rows on one device."""
        return TableStage(self.schema, self.tables, self.weight, self.row_format.precision).to(
            torch.device(device)
        )

    def tiered(self, mode: int | None) -> TableStage:
        """Returns a stage over the tiers. mode: DIRECT or COPIED; None: chosen while serving."""
        rows = TieredRows(self.stack)
        rows.fused = FusedLookups(self.stack, mode)
        return TableStage.over(self.schema, self.tables, rows)

    def close(self) -> None:
        self.stack.close()


def lookup_variants(model: GpuModel) -> dict[str, Predict]:
    """Batch -> vectors on the device, [rows, tables, WIDTH].

    tiers, direct, copied: through the stack, which chooses the transfer mode of misses, or has one.
    all_on_gpu: a plain gather from one weight. gather_and_copy: gathered on the host into pinned memory,
    copied. embedding_bag: torch.nn.EmbeddingBag on the device.
    """

    def staged(stage: TableStage) -> Predict:
        return lambda batch: stage(batch).candidate

    found = {
        "tiers": staged(model.tiered(None)),
        "direct": staged(model.tiered(DIRECT)),
        "copied": staged(model.tiered(COPIED)),
        "all_on_gpu": staged(model.flat(model.device)),
        "gather_and_copy": _gather_and_copy(model),
    }
    if model.row_format.precision == "fp32":
        found["embedding_bag"] = _embedding_bag(model)
    return found


def predictions(model: GpuModel) -> dict[str, Predict]:
    """Batch -> probabilities on the host: each variant of the lookup, then the dense net in its bucket.

    embedding_bag_plain: without buckets, as plain torch is written.
    """

    def predicting(vectors: Predict) -> Predict:
        return lambda batch: model.buckets(_inputs(model, batch, vectors(batch)))

    looking = lookup_variants(model)
    found = {name: predicting(lookup) for name, lookup in looking.items()}

    def plain(batch: Batch) -> Any:
        inputs = _inputs(model, batch, looking["embedding_bag"](batch))
        return model.net(inputs).sigmoid_().cpu().numpy()

    return found | {"embedding_bag_plain": plain}


def _inputs(model: GpuModel, batch: Batch, vectors: Tensor) -> Inputs:
    none = torch.empty((vectors.shape[0], 0, WIDTH), device=model.device)
    return inputs_of(batch, Vectors(none, vectors))


def _gather_and_copy(model: GpuModel) -> Predict:
    rows = model.flat("cpu").rows
    row_format, cuda = model.row_format, model.device.type == "cuda"
    stored = model.weight
    staged = torch.empty((0, row_format.units), dtype=row_format.unit)

    def look_up(batch: Batch) -> Tensor:
        nonlocal staged
        wanted = as_index(rows.lookups(batch).singles, torch.device("cpu"))
        if staged.shape[0] < wanted.numel():
            staged = torch.empty((wanted.numel(), row_format.units), dtype=row_format.unit, pin_memory=cuda)
        out = staged[: wanted.numel()]
        if cuda:
            # the last batch's copy reads the same memory
            torch.cuda.current_stream().synchronize()
        torch.index_select(stored, 0, wanted, out=out)
        there = row_format.decode(out.to(model.device, non_blocking=True))
        return there.view(batch.candidate.rows, len(model.tables), WIDTH)

    return look_up


def _embedding_bag(model: GpuModel) -> Predict:
    rows = model.flat("cpu").rows
    bag = torch.nn.EmbeddingBag.from_pretrained(model.weight.to(model.device), mode="sum")

    def look_up(batch: Batch) -> Tensor:
        wanted = rows.lookups(batch).singles
        offsets = np.arange(wanted.size)
        vectors: Tensor = bag(on_device(wanted, model.device), on_device(offsets, model.device))
        return vectors.view(batch.candidate.rows, len(model.tables), WIDTH)

    return look_up
