"""Formats numbers, verdicts and explanations, identically for the terminal, the page and the Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyrec.models.amounts import size
from polyrec.models.evaluation.comparison import METRICS, Interval, Metric, verdict
from polyrec.report.page import Table
from polyrec.report.quality.comparison import ModelComparison, ModelEntry

NAMES: dict[Metric, str] = {
    "information": "information",
    "auc": "AUC",
    "log_loss": "log-loss",
    "accuracy": "accuracy",
    "mrr": "MRR",
    "ndcg": "NDCG",
}
MINUS = "\N{MINUS SIGN}"
TERMS: tuple[tuple[str, str], ...] = (
    (
        "information",
        "information gain, the share of the labels' entropy that the model explains: one minus its log-loss "
        "over that of always predicting the mean click rate. 0 is that constant, 1 is perfect.",
    ),
    (
        "AUC",
        "the chance that a positive row (a click) is scored above another; 0.5 is guessing, 1 is perfect.",
    ),
    ("log-loss", "the mean negative log-likelihood of the labels, in nats; lower is better."),
    ("accuracy", "the share of rows on the right side of a probability of one half."),
    (
        "MRR, top-1, NDCG",
        "per request, the mean of 1/rank of the best-ranked positive row, how often that rank is the first, "
        "and the gain of the positive rows, discounted by rank, over the best possible.",
    ),
    (
        "size",
        "bytes of the model's numbers: what embeds ids (rows, decoders) and the dense net, "
        "without the vocabulary.",
    ),
    (
        "MFLOP a row",
        "millions of floating point operations to score one row, a multiply-add being two; "
        "lookups move data and count nothing.",
    ),
    (
        "better, worse",
        "the confidence interval of the difference excludes zero. No difference shown: it does not, "
        "which is not a proof that there is none.",
    ),
    ("Pareto front", "models that no other model beats in both the metric and the cost of a picture."),
)


def title(comparison: ModelComparison) -> str:
    """Returns the heading of the report."""
    n = len(comparison.entries)
    return "Quality and cost of one model" if n == 1 else f"Quality and cost of {n} models on the same rows"


def summary(comparison: ModelComparison) -> str:
    """Describes the measured rows in a paragraph."""
    q = comparison.entries[0].quality
    which = "All rows" if comparison.split == "all" else f"The {comparison.split} rows"
    rate = 100 * q.positives / q.rows
    requests = "" if q.groups is None else f" {q.groups:,} requests have a positive row."
    several = len(comparison.entries) > 1
    against = f" Differences are to the baseline, {comparison.baseline}." if several else ""
    return (
        f"{which} of {comparison.data}: {q.rows:,} rows, {q.positives:,} of them positive ({rate:.2f}%)."
        f"{requests}{against}"
    )


def method(comparison: ModelComparison) -> str:
    """Describes the statistics behind the intervals in a paragraph."""
    c = comparison
    unit = "requests" if c.grouped else "rows"
    percent = f"{100 * c.level:g}%"
    return (
        f"Intervals are {percent} percentile intervals of a bootstrap of {c.resamples:,} resamples of "
        f"{unit} (seed {c.seed}), paired: each resample draws the same {unit} for every model. They "
        "speak of these models on other rows of the same kind; another training run of the same recipe adds "
        f"its own spread. Among many comparisons some differences look real by chance: one in "
        f"{round(1 / (1 - c.level))} where there is none. Runtime {c.runtime}, Polyrec "
        f"{c.code_version}, {c.made}."
    )


def mflop(flops: float) -> str:
    """Formats millions of operations with three digits: `0.0835`."""
    return f"{flops / 1e6:.3g}"


def number(value: float | None) -> str:
    """Formats a metric with five decimals, or as a dash if it is undefined."""
    return "\N{EN DASH}" if value is None or not math.isfinite(value) else f"{value:.5f}"


def signed(value: float, decimals: int = 5) -> str:
    """Formats a number with its sign, using a true minus."""
    return f"{value:+.{decimals}f}".replace("-", MINUS)


def decimals_of(interval: Interval) -> int:
    """Returns the decimals that an interval needs: five, or more if its ends would show as zeros."""
    least = min((abs(v) for v in (interval.low, interval.high) if v), default=1.0)
    return min(max(5, math.ceil(-math.log10(least))), 9)


def difference(metric: Metric, interval: Interval) -> str:
    """Formats a difference from the baseline: `better by 0.00213 (0.00120 to 0.00301)`."""
    found = verdict(metric, interval)
    if found == "undefined":
        return "not defined"
    if found == "identical":
        return "identical"
    n = decimals_of(interval)
    if found == "unclear":
        return f"no difference shown ({signed(interval.low, n)} to {signed(interval.high, n)})"
    low, high = sorted((abs(interval.low), abs(interval.high)))
    return f"{found} by {abs(interval.value):.{n}f} ({low:.{n}f} to {high:.{n}f})"


def findings(comparison: ModelComparison) -> tuple[str, ...]:
    """Returns one sentence per model, with its real differences from the baseline."""
    return tuple(_finding(e, comparison.baseline) for e in comparison.entries if e.standing.to_baseline)


def _finding(entry: ModelEntry, baseline: str) -> str:
    by: dict[str, list[str]] = {}
    for metric in METRICS:
        found = entry.standing.verdict(metric)
        assert found is not None
        by.setdefault(found, []).append(NAMES[metric])
    if set(by) <= {"identical", "undefined"}:
        return f"{entry.label} predicts the same as {baseline}."
    parts = []
    if "better" in by:
        parts.append(f"is better than {baseline} in {joined(by['better'])}")
    if "worse" in by:
        parts.append(f"is worse {'' if parts else f'than {baseline} '}in {joined(by['worse'])}")
    if "unclear" in by:
        to = "" if parts else f"to {baseline} "
        parts.append(f"shows no difference {to}in {joined(by['unclear'])}")
    return f"{entry.label} {joined(parts)}."


def joined(parts: Sequence[str]) -> str:
    """Joins parts as `a`, `a and b`, or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def table(comparison: ModelComparison) -> Table:
    """Returns the table of quality and cost, one row per model."""
    entries = comparison.entries
    columns: dict[str, list[str]] = {"model": [e.label for e in entries]}
    wordy = ["size"]
    for metric in ("information", "auc"):
        columns[NAMES[metric]] = [number(e.standing.metrics[metric].value) for e in entries]
        if len(entries) > 1:
            against = f"{NAMES[metric]} against {comparison.baseline}"
            wordy.append(against)
            columns[against] = [
                "baseline" if (to := e.standing.to_baseline) is None else difference(metric, to[metric])
                for e in entries
            ]
    columns["size"] = [
        f"{size(e.bytes.total)} ({size(e.bytes.rows)} rows, {size(e.bytes.net)} net)" for e in entries
    ]
    columns["MFLOP a row"] = [mflop(e.flops.total) for e in entries]
    columns["log-loss"] = [number(e.quality.log_loss) for e in entries]
    columns["accuracy"] = [number(e.quality.accuracy) for e in entries]
    if comparison.grouped:
        columns["MRR"] = [number(e.quality.mrr) for e in entries]
        columns["top-1"] = [number(e.quality.top1) for e in entries]
        columns["NDCG"] = [number(e.quality.ndcg) for e in entries]
    head = tuple(columns)
    text_columns = frozenset(i for i, name in enumerate(head) if name in wordy)
    return Table(head, tuple(zip(*columns.values(), strict=True)), text_columns)
