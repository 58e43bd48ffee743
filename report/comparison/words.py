"""Numbers and verdicts in words, the same in the terminal, the page and the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyrec.models.amounts import size
from polyrec.models.evaluation.comparison import METRICS, Interval, Metric, verdict
from polyrec.report.comparison.document import Document, Entry

NAMES: dict[Metric, str] = {"auc": "AUC", "log_loss": "log-loss", "accuracy": "accuracy"}
MINUS = "\N{MINUS SIGN}"


def mflop(flops: float) -> str:
    """Millions of operations, three digits: `0.0835`."""
    return f"{flops / 1e6:.3g}"


def number(value: float | None) -> str:
    """A metric: five decimals, or a dash where it is not defined."""
    return "\N{EN DASH}" if value is None or not math.isfinite(value) else f"{value:.5f}"


def signed(value: float, decimals: int = 5) -> str:
    """With its sign, a true minus."""
    return f"{value:+.{decimals}f}".replace("-", MINUS)


def decimals_of(interval: Interval) -> int:
    """How many decimals an interval needs: five, or more where its ends would all be zeros."""
    least = min((abs(v) for v in (interval.low, interval.high) if v), default=1.0)
    return min(max(5, math.ceil(-math.log10(least))), 9)


def difference(metric: Metric, interval: Interval) -> str:
    """A difference to the baseline: `better by 0.00213 (0.00120 to 0.00301)`."""
    said = verdict(metric, interval)
    if said == "undefined":
        return "not defined"
    if said == "identical":
        return "identical"
    n = decimals_of(interval)
    if said == "unclear":
        return f"no difference shown ({signed(interval.low, n)} to {signed(interval.high, n)})"
    low, high = sorted((abs(interval.low), abs(interval.high)))
    return f"{said} by {abs(interval.value):.{n}f} ({low:.{n}f} to {high:.{n}f})"


def to_baseline(entry: Entry, metric: Metric) -> str:
    """What the table says of a model against the baseline."""
    standing = entry.standing.to_baseline
    return "baseline" if standing is None else difference(metric, standing[metric])


def findings(document: Document) -> list[str]:
    """One sentence a model: what is real about its differences to the baseline."""
    return [_finding(entry, document.baseline) for entry in document.entries if entry.standing.to_baseline]


def _finding(entry: Entry, baseline: str) -> str:
    by: dict[str, list[str]] = {}
    for metric in METRICS:
        said = entry.standing.verdict(metric)
        assert said is not None
        by.setdefault(said, []).append(NAMES[metric])
    if set(by) <= {"identical", "undefined"}:
        return f"{entry.label} predicts the same as {baseline}."
    parts = []
    if "better" in by:
        parts.append(f"is better than {baseline} in {listed(by['better'])}")
    if "worse" in by:
        parts.append(f"is worse {'' if parts else f'than {baseline} '}in {listed(by['worse'])}")
    if "unclear" in by:
        parts.append(
            f"shows no difference in {listed(by['unclear'])}"
            if parts
            else f"shows no difference to {baseline} in {listed(by['unclear'])}"
        )
    return f"{entry.label} {listed(parts)}."


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a report's table. wordy: its cells are words, with a detail in brackets."""

    head: str
    cells: tuple[str, ...]
    wordy: bool = False


def columns(document: Document) -> list[Column]:
    """The table of a report, a row a model."""
    entries = document.entries
    found = [Column("model", tuple(e.label for e in entries))]
    for metric in ("log_loss", "auc"):
        values = tuple(number(e.standing.own[metric].value) for e in entries)
        found.append(Column(NAMES[metric], values))
        if len(entries) > 1:
            against = f"{NAMES[metric]} against {document.baseline}"
            found.append(Column(against, tuple(to_baseline(e, metric) for e in entries), wordy=True))
    parts = tuple(
        f"{size(e.bytes.total)} ({size(e.bytes.rows)} rows, {size(e.bytes.net)} net)" for e in entries
    )
    found.append(Column("size", parts, wordy=True))
    found.append(Column("MFLOP a row", tuple(mflop(e.flops.total) for e in entries)))
    found.append(Column("normalised entropy", tuple(number(e.quality.normalised_entropy) for e in entries)))
    found.append(Column("accuracy", tuple(number(e.quality.accuracy) for e in entries)))
    if document.grouped:
        found.append(Column("MRR", tuple(number(e.quality.mrr) for e in entries)))
        found.append(Column("top-1", tuple(number(e.quality.top1) for e in entries)))
    return found
