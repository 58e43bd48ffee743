"""Distills a trained table model into another representation.

First, computed vectors are regressed onto the trained rows. Rows are weighted by their accesses, so that the
most used vectors are learned best; this needs no data, only the bundle's access counts. If data are given,
the whole model is then fine-tuned on them.

    dhe, select   computed vectors learn the rows; the dense net stays as it is
    hybrid        the table stays, computed vectors are added, and the dense net's weights of the new inputs
                  start at zero: before fine-tuning it predicts exactly like the table

`distill` does the regression, models/training/warm/fine_tune.py the fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.context_once import first_layer
from polyrec.models.dlrm.dlrm import DLRM, DenseNet, Net, initial_net
from polyrec.models.dlrm.interaction import Cross, Dot
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.decoder import fold_norms
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import BundleError

LR = 1e-3
"""Adam's step size at the first step; it falls to zero."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Parameters of the regression: optimizer steps, lookups per step, seed."""

    steps: int = 3000
    rows: int = 4096
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well computed vectors match the rows.

    explained: share of explained variance, with each row weighted by its accesses.
    """

    explained: float
    steps: int


Progress = Callable[[int, int, float], object]
"""Called with (step, steps, loss) after each step."""


def distill(
    bundle: Bundle,
    representation: Representation,
    regression: Regression,
    progress: Progress | None = None,
) -> tuple[DLRM, Fidelity]:
    """Returns a model in another representation that approximates the rows of a table bundle.

    Raises BundleError if the bundle is not an fp32 table.
    """
    source = bundle.manifest.representation
    if source.name != "table":
        raise BundleError(f"'{bundle.path}' is a {source.name}; only a fp32 table can be distilled")
    table = bundle.stage()
    assert isinstance(table, TableStage)
    assert isinstance(table.store, FloatRows)
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    stage = initial_stage(representation, schema, vocabularies, table.width, regression.seed)
    computed = stage.computed if isinstance(stage, HybridStage) else stage
    assert isinstance(computed, ComputedStage)
    rows = table.store.weight.detach()
    if isinstance(stage, HybridStage):
        stage.table.store = FloatRows(rows.clone())
    kept = [rows[table.rows.base[t] :][: representation.cuts.get(t, 0)] for t in table.rows.tables]
    computed.store = FloatRows(torch.cat(kept).clone())
    counts = np.concatenate([vocabularies[t].counts for t in schema.tables])
    fidelity = regress(computed, rows, counts.astype(np.float64), regression, progress)
    net = bundle.model().net
    if isinstance(stage, HybridStage):
        net = widen_net(net, table, stage)
    return DLRM(stage, net).eval(), fidelity


def regress(
    stage: ComputedStage,
    rows: torch.Tensor,
    counts: np.ndarray,
    regression: Regression,
    progress: Progress | None = None,
) -> Fidelity:
    """Trains the decoders of `stage` to reproduce `rows` [total, width], sampled in proportion to `counts`.

    Rows with a count of zero are sampled as often as rows with a count of one.
    """
    wanted = np.concatenate(
        [
            np.arange(stage.rows.base[t] + cut, stage.rows.base[t] + size)
            for t, cut, size in zip(stage.rows.tables, stage.cuts, stage.rows.sizes, strict=True)
        ]
    )
    if not wanted.size:
        return Fidelity(1.0, 0)
    weight = np.maximum(counts[wanted], 1.0)
    cumulative = np.cumsum(weight / weight.sum())
    random = np.random.default_rng(regression.seed)
    parameters = stage.dense_parameters()
    adam = torch.optim.Adam(parameters, lr=LR)
    for step in range(1, regression.steps + 1):
        drawn = wanted[np.searchsorted(cumulative, random.random(regression.rows)).clip(max=wanted.size - 1)]
        distinct, times = np.unique(drawn, return_counts=True)
        error = (stage.vectors(distinct) - rows[torch.from_numpy(distinct)]).square().sum(1)
        loss = (error * torch.from_numpy(times / regression.rows).float()).sum()
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.param_groups[0]["lr"] = LR * (1 - (step - 1) / regression.steps)
        adam.step()
        if progress:
            progress(step, regression.steps, loss.item())
    fold_norms(stage)
    return Fidelity(_explained(stage, rows, wanted, weight / weight.sum()), regression.steps)


def _explained(stage: ComputedStage, rows: torch.Tensor, wanted: np.ndarray, weight: np.ndarray) -> float:
    """Returns 1 - weighted squared error / weighted variance, over all computed rows."""
    target = rows[torch.from_numpy(wanted)].numpy()
    mean = weight @ target
    error = 0.0
    with torch.inference_mode():
        for start in range(0, wanted.size, 8192):
            part = slice(start, start + 8192)
            got = stage.vectors(wanted[part]).numpy()
            error += float(weight[part] @ np.square(got - target[part]).sum(1))
    variance = float(weight @ np.square(target - mean).sum(1))
    return 1.0 - error / max(variance, 1e-30)


def widen_net(net: Net, table: TableStage, stage: HybridStage) -> Net:
    """Returns a dense net for twice the vectors; the new inputs have zero weights, so it predicts like
    `net`.
    """
    new = initial_net(net.shape, net.dense, stage.slots)
    for old_head, new_head in zip(net.heads, new.heads, strict=True):
        _widen_head(old_head, new_head, table, stage)
    return new


def _widen_head(net: DenseNet, new: DenseNet, table: TableStage, stage: HybridStage) -> None:
    old_first, new_first = first_layer(net), first_layer(new)
    bottom = 0 if net.bottom is None else 1
    # positions of the old vectors: bottom, context, (its computed ones), candidate, (its computed ones)
    kept = [*range(bottom + table.slots.context)]
    kept += [bottom + stage.slots.context + i for i in range(table.slots.candidate)]
    columns = _columns(net, new, np.array(kept))
    with torch.no_grad():
        state = new.state_dict()
        state.update({k: v for k, v in net.state_dict().items() if v.shape == state[k].shape})
        new.load_state_dict(state)
        if isinstance(net.interaction, Cross) and isinstance(new.interaction, Cross):
            _widen_cross(net.interaction, new.interaction, columns)
        new_first.weight.zero_()
        new_first.weight[:, columns] = old_first.weight
        new_first.bias.copy_(old_first.bias)


def _widen_cross(old: Cross, new: Cross, columns: torch.Tensor) -> None:
    """Copies the layers so that new inputs enter no product and pass through unchanged."""
    for before, after in zip((*old.down, *old.up), (*new.down, *new.up), strict=True):
        assert isinstance(before, nn.Linear)
        assert isinstance(after, nn.Linear)
        after.weight.zero_()
        if after.bias is None:
            after.weight[: before.out_features, columns] = before.weight
        else:
            after.bias.zero_()
            after.bias[columns] = before.bias
            after.weight[columns, : before.in_features] = before.weight


def _columns(old: DenseNet, new: DenseNet, kept: np.ndarray) -> torch.Tensor:
    """Returns the position of each of the old top MLP's inputs among the new one's."""
    width = old.shape.width
    if isinstance(old.interaction, Dot):
        assert isinstance(new.interaction, Dot)
        vectors = sum(new.slots) + (0 if new.bottom is None else 1)
        place = {int(p): i for i, p in enumerate(new.interaction.get_buffer("pairs"))}
        ahead = 0 if old.bottom is None else width
        count = sum(old.slots) + (0 if old.bottom is None else 1)
        pairs = [(kept[p // count], kept[p % count]) for p in old.interaction.get_buffer("pairs").tolist()]
        columns = [*range(ahead), *(ahead + place[i * vectors + j] for i, j in pairs)]
        return torch.tensor(columns)
    return torch.from_numpy((kept[:, None] * width + np.arange(width)).ravel())
