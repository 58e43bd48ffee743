"""Writes the tables of docs/results/quality.md between the page's markers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import save, timestamp
from polyrec.models.amounts import size
from polyrec.models.evaluation.comparison import Interval, Metric
from polyrec.report.quality.wording import difference, mflop
from polyrec.report.text import markdown_table

MEANS = ("auc", "log_loss", "normalised_entropy", "accuracy")
AGAINST: tuple[Metric, ...] = ("auc", "log_loss")


def markdown(found: Mapping[str, Any], baseline: str) -> str:
    """Returns the table of one data set, measured by benchmarks/quality/representations.py."""
    heads = [
        "representation",
        "AUC",
        "log-loss",
        "normalized entropy",
        "accuracy",
        "size",
        f"of {baseline}'s",
    ]
    heads += ["its rows, of those", "MFLOP a row", f"AUC against {baseline}"]
    heads += [f"log-loss against {baseline}"]
    rows = []
    whole = found["variants"][baseline]["bytes"]
    for name, v in found["variants"].items():
        spread, against = v["spread"], v["to_baseline"]
        cells = [name, *(_spread(spread[m]) for m in MEANS)]
        cells += [size(v["bytes"]["total"]), *(f"{v['bytes'][k] / whole[k]:.3f}" for k in ("total", "rows"))]
        cells += [mflop(v["flops_per_row"]["total"])]
        cells += ["" if against is None else _against(m, against) for m in AGAINST]
        rows.append(cells)
    return "\n".join(markdown_table(heads, rows))


def _spread(spread: Mapping[str, float]) -> str:
    deviation = "" if math.isnan(spread["deviation"]) else f" ± {spread['deviation']:.5f}"
    return f"{spread['mean']:.5f}{deviation}"


def _against(metric: Metric, against: Mapping[str, Any]) -> str:
    return difference(metric, Interval(**against[metric]["interval"])).replace("no difference shown", "noise")


def write_figures(page: Path, record: Mapping[str, Any], text: str, machine: str) -> None:
    """Writes the record as JSON beside a page, and the text between the page's markers of `figures`."""
    save(page.with_suffix(".json"), {"machine": machine, **record})
    marked = between_markers(page.read_text(), "figures", f"{text}\n\n{machine}; {timestamp()}.")
    page.write_text(marked)


def between_markers(page: str, name: str, text: str) -> str:
    """Returns `page` with the text between the markers of `name` replaced."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"docs/results/quality.md lacks the markers '{begin}' and '{end}'")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)
