"""Formats the tables of docs/results/recd.md from the figures of benchmarks/recd/savings.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyrec.report.text import markdown_table

RECD = {"training": 2.48, "reading": 1.79, "storage": 3.71}
"""Best factors reported by the paper (MLSys'23, section 6), for its authors' models and clusters."""

FORMS = {
    "shuffled": "plain, rows shuffled",
    "together": "plain, requests together",
    "packed": "packed",
    "packed, default encodings": "packed, but with default encodings",
    "packed by session": "packed, sessions together",
    "rows, every lookup": "random rows, every lookup computed",
    "rows": "random rows",
    "requests": "whole requests",
    "shared": "whole requests, contexts shared",
    "shared, half": "the same, 256 rows instead of 512",
}

Found = Mapping[str, Any]


def markdown(found: Found) -> str:
    """Returns every table that has figures."""
    out: list[str] = []
    if "trivago" in found:
        out += ["### Storage", "", *_storage(found["trivago"]["bytes"]), ""]
        out += ["### Reading", "", *_reading(found["reading"]), ""]
        out += ["### Training", "", *_training(found["training"]), ""]
        out += ["### Groups chosen by measure", "", *_groups(found["groups"]), ""]
    if "quality" in found:
        out += ["### Quality", "", *_quality(found["quality"]), ""]
    if "sweep" in found:
        out += ["### Sweep", "", *_sweep(found["sweep"])]
    return "\n".join(out)


def _storage(sizes: Mapping[str, int]) -> list[str]:
    rows = [
        [FORMS[name], f"{size:,}", _times(sizes["shuffled"] / size), _times(sizes["together"] / size)]
        for name, size in sizes.items()
    ]
    rows.append(["RecD, best of the paper", "", _times(RECD["storage"]), ""])
    return markdown_table(["form", "bytes", "smaller than shuffled", "than together"], rows)


def _reading(found: Found) -> list[str]:
    rows = [
        [
            FORMS[name],
            f"{f['rows_per_s']:,.0f}",
            *(_times(f["rows_per_s"] / found[base]["rows_per_s"]) for base in ("shuffled", "together")),
            _mb(f["encoded_bytes"]),
            _mb(f["peak_bytes"]),
            f"{f['spread']:.0%}",
        ]
        for name, f in found.items()
    ]
    rows.append(["RecD, best of the paper", "", _times(RECD["reading"]), "", "", "", ""])
    heads = ["form", "rows/s", "against shuffled", "against together", "encoded", "peak memory", "spread"]
    return markdown_table(heads, rows)


def _training(found: Mapping[str, Found]) -> list[str]:
    rows = []
    for kind, forms in found.items():
        for name, f in forms.items():
            rows.append(
                [
                    kind,
                    FORMS[name],
                    f"{f['rows'] / f['contexts']:.1f}",
                    f"{f['rows_per_s']:,.0f}",
                    _times(f["rows_per_s"] / forms["rows"]["rows_per_s"]),
                    _times(f["rows_per_s"] / forms["requests"]["rows_per_s"]),
                    _mb(f["peak_bytes"]),
                    f"{f['spread']:.0%}",
                ]
            )
    rows.append(["RecD, best of the paper", "", "", "", _times(RECD["training"]), "", "", ""])
    heads = ["representation", "batches of", "rows a context", "rows/s", "against random rows"]
    return markdown_table([*heads, "against whole requests", "peak memory", "spread"], rows)


def _groups(found: Sequence[Found]) -> list[str]:
    return markdown_table(
        ["features", "dedup factor"], [[", ".join(g["features"]), f"{g['factor']:.1f}"] for g in found]
    )


def _quality(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = []
    for kind, forms in found.items():
        for name, metrics in forms.items():
            cells = [
                f"{m['mean']:.5f}" + ("" if m["deviation"] is None else f" ± {m['deviation']:.5f}")
                for m in metrics.values()
            ]
            rows.append([kind, FORMS[name], *cells])
    return markdown_table(["representation", "batches of", "AUC", "log-loss", "MRR"], rows)


def _sweep(found: Sequence[Found]) -> list[str]:
    rows = []
    for point in found:
        sizes, reading, training = point["bytes"], point["reading"], point["training"]
        shared = training["shared"]
        rows.append(
            [
                str(point["candidates"]),
                f"{point['rows'] / point['requests']:.1f}",
                _times(sizes["shuffled"] / sizes["packed"]),
                _times(sizes["together"] / sizes["packed"]),
                _times(reading["packed"]["rows_per_s"] / reading["shuffled"]["rows_per_s"]),
                _times(reading["packed"]["rows_per_s"] / reading["together"]["rows_per_s"]),
                _times(reading["together"]["encoded_bytes"] / reading["packed"]["encoded_bytes"]),
                _times(shared["rows_per_s"] / training["rows"]["rows_per_s"]),
                _times(shared["rows_per_s"] / training["requests"]["rows_per_s"]),
            ]
        )
    heads = ["candidates", "rows a request", "bytes: shuffled / packed", "together / packed"]
    heads += ["reading: packed / shuffled", "packed / together", "encoded bytes: plain / shared"]
    heads += ["training: shared / random rows", "shared / whole requests"]
    return markdown_table(heads, rows)


def _times(factor: float) -> str:
    return f"{factor:.2f}x"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
