"""Writes docs/results/gpu.md from figures measured on a GPU.

    python -m benchmarks.gpu.page docs/results     # reads gpu-{lookup,serving,profile,simulated}.json there

benchmarks/gpu.sh writes the first two, and gpu-bench.json, which has a section if it is there.
gpu-profile.json has the latencies of its `polyrec profile`, and gpu-simulated.json the output of
`polyrec simulate --policy all --bound --json` for a plan made from them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from polyrec.planner.latency_model import LatencyModel
from polyrec.report.text import markdown_table

TEXT = Path(__file__).with_name("page.md")
"""The page's text, with a place for the tables."""
KERNEL_HITS = (1.0, 0.95, 0.8)
BATCHES = (1, 64, 1024, 4096)
PROFILED = (1, 32, 128, 256, 1024)


def kernel(look: Mapping[str, Any]) -> list[str]:
    """The kernel alone against the floor of its memory."""
    rates = look["bytes_per_s"]
    cells = [
        [
            k["precision"],
            f"{k['batch']:,}",
            f"{k['hit']:.0%}",
            f"{k['floor_us']:.1f}",
            f"{k['kernel_us']:.1f}",
            f"{k['embedding_bag_us']:.1f}" if "embedding_bag_us" in k else "",
        ]
        for k in look["kernel"]
        if k["hit"] in KERNEL_HITS
    ]
    head = ["rows", "batch", "hits", "floor, us", "kernel, us", "EmbeddingBag, us"]
    return [
        "## The lookup kernel",
        "",
        f"26 tables of {look['rows_a_table']:,} rows x 64, half of each on the device; time by the device's "
        "clock, different rows each time. Floor: bytes divided by the bandwidth of copies in the same run, "
        f"{rates['memory'] / 1e9:,.0f} GB/s of device memory for hits, {rates['bus'] / 1e9:.0f} GB/s of the "
        "bus for misses.",
        "",
        *markdown_table(head, cells),
    ]


def predictions(look: Mapping[str, Any]) -> list[str]:
    """Predictions by each way of looking up."""
    rows = [r for r in look["predictions"] if r["batch"] in BATCHES and r["hit"] in (1.0, 0.95)]
    names = list(rows[0]["us"])
    cells = [
        [f"{r['batch']:,}", f"{r['hit']:.0%}", *(f"{r['us'][name]:,.0f}" for name in names)] for r in rows
    ]
    return [
        "## Predictions over tiers",
        "",
        "The same rows with the dense net (13-512-256-64, 512-256-1), microseconds of wall time until "
        "the answers are on the host. `tiers` chooses between `direct` and `copied`; `gather_and_copy`: all "
        "rows on the host; `all_on_gpu`, `embedding_bag`: all on the GPU, `plain` without graphs.",
        "",
        *markdown_table(["batch", "hits", *names], cells),
    ]


def serving(served: Mapping[str, Any]) -> list[str]:
    """Closed loops of servers with the GPU."""
    lines = [
        "## Served",
        "",
        "The Kaggle-size model (2.0 M rows x 16) over HTTP, in JSON except `binary`; closed loop of 16 "
        "connections, and of one (*alone*). Every answer is compared with float64. Servers and load have "
        "cores of their own.",
    ]
    for size, found in served["sizes"].items():
        lines += ["", *closed_table(int(size), found)]
    return lines


def closed_table(rows: int, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The closed loops of servers with requests of `rows` rows, as a table."""
    plain = next(f for name, f in found.items() if name.startswith("plain"))["closed_requests_per_s"]
    cells = []
    for name, one in found.items():
        rate = one["closed_requests_per_s"]
        cells.append([name, f"{rate:,.0f}", f"{rate / plain:.2f}", f"{one['alone_ms']:.2f}"])
    return markdown_table([f"{rows} rows", "requests/s", "of plain FastAPI", "alone, ms"], cells)


def profile(found: Mapping[str, Any]) -> list[str]:
    """Latency of representations on both devices."""
    named = dict(found["paths"]) | {f"{name}, before": one for name, one in found["before"].items()}
    rows = []
    for name, one in named.items():
        latency = LatencyModel(rows=one["rows"], median_s=one["median_s"], tail_s=one["tail_s"])
        rows.append([name, *(f"{1e3 * latency.median(batch):.2f}" for batch in PROFILED)])
    return [
        "## Representations",
        "",
        "`polyrec profile` of the Kaggle shape (`benchmarks.gpu.representations`; DHE with 1,024 hashes, "
        "512-256), fp32, median milliseconds of a batch, encoding included: one lane on one core, or the "
        "GPU. CPU paths and `before` are from the second run, on a slower machine (table on the GPU "
        "took twice the time) and without the change below.",
        "",
        *markdown_table(["path", *(f"{rows:,} rows" for rows in PROFILED)], rows),
    ]


def simulated(found: Mapping[str, Any]) -> list[str]:
    """The policies over the measured latencies."""
    policies = [one["policy"] for one in next(iter(found["rates"].values()))]
    rows = []
    for rate, ran in found["rates"].items():
        by = {one["policy"]: one for one in ran}
        mix = " ".join(
            f"{name} {share:.0%}" for name, share in by["priced"]["paths"].items() if share >= 0.005
        )
        rows.append(
            [
                f"{int(rate):,}",
                *(f"{by[p]['in_budget']:.1%} / {by[p]['of_bound']:.4f}" for p in policies),
                mix,
            ]
        )
    return [
        "## Routing over both devices, simulated",
        "",
        "`polyrec plan` on these latencies (1,500 queries/s of 128 rows, lognormal, 10 ms, four cores), then "
        "`polyrec simulate` of its plan, 10 s a rate: share in time / correct predictions relative to the "
        "clairvoyant bound. Accuracies are MP-Rec's for Kaggle (table .7879, hybrid .7898).",
        "",
        *markdown_table(["queries/s", *policies, "rows by `priced`"], rows),
    ]


def benched(found: Mapping[str, Any]) -> list[str]:
    """The policies on a live server, by `polyrec bench --json`; medians of a rate's runs."""
    trials = found["trials"]
    rows = []
    for rate in dict.fromkeys(rate for trial in trials.values() for rate in trial["ladder"]):
        cells = []
        for trial in trials.values():
            runs = trial["ladder"].get(rate, [])
            in_time, correct = ([run[key] for run in runs] for key in ("ok", "information"))
            known = runs and None not in correct
            cells.append(f"{median(in_time):.1%} / {median(correct):,.0f}" if known else "")
        rows.append([f"{float(rate):,.0f}", *cells])
    return [
        "## Routing over both devices, live",
        "",
        f"`polyrec bench` of a plan within {1e3 * found['conditions']['slo_s']:g} ms: share in time / rows "
        "per second in time, weighted by accuracy.",
        "",
        *markdown_table(["queries/s", *trials], rows),
    ]


def page(folder: Path) -> str:
    """Returns the page's text. folder: of the figures."""
    look, served, profiled, ran = (
        json.loads((folder / f"gpu-{name}.json").read_text())
        for name in ("lookup", "serving", "profile", "simulated")
    )
    parts = [kernel(look), predictions(look), serving(served), profile(profiled), simulated(ran)]
    if (live := folder / "gpu-bench.json").exists():
        parts.append(benched(json.loads(live.read_text())))
    return TEXT.read_text().replace("{tables}", "\n\n".join("\n".join(part) for part in parts))


if __name__ == "__main__":
    (Path(sys.argv[1]) / "gpu.md").write_text(page(Path(sys.argv[1])))
