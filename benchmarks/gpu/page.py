"""Writes docs/results/gpu.md from figures measured on a GPU.

    python -m benchmarks.gpu.page docs/results

Reads gpu-{lookup,serving,profile,simulated}.json there, and gpu-{paths,bench,tiers,training}.json, which may
be missing: their sections then say that nothing was measured. benchmarks/gpu.sh writes all but two of them.
gpu-profile.json has the latencies of an earlier `polyrec profile` (gpu-paths.json, a whole profile, replaces
it), and gpu-simulated.json the output of `polyrec simulate --policy all --bound --json` for a plan made from
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
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
KNEES = (
    "Knee: the highest Poisson rate at which 99% of the requests are answered within 10 ms (23 rows), 25 ms "
    "(270) or 80 ms (2,048)."
)


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
    """Predictions by each variant of the lookup."""
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
    found = served["sizes"].values()
    knees = any("knee_requests_per_s" in one for servers in found for one in servers.values())
    lines += ["", KNEES if knees else "Knees were not measured."]
    if "2048" not in served["sizes"]:
        lines[-1] += " Requests of 2,048 rows were not measured."
    return lines


def closed_table(rows: int, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The closed loops and knees of servers with requests of `rows` rows, as a table."""
    plain = next((f["closed_requests_per_s"] for name, f in found.items() if name.startswith("plain")), None)
    cells = []
    for name, one in found.items():
        rate, knee = one["closed_requests_per_s"], one.get("knee_requests_per_s")
        relative = "" if plain is None else f"{rate / plain:.2f}"
        held = "" if knee is None else f"{knee:,.0f}"
        cells.append([name, f"{rate:,.0f}", relative, f"{one['alone_ms']:.2f}", held])
    head = [f"{rows:,} rows", "requests/s", "of plain FastAPI", "alone, ms", "knee, requests/s"]
    if not any("knee_requests_per_s" in one for one in found.values()):
        head, cells = head[:-1], [row[:-1] for row in cells]
    return markdown_table(head, cells)


def profile(found: Mapping[str, Any]) -> list[str]:
    """Latency of representations on both devices. found: as in gpu-profile.json."""
    named = dict(found["paths"]) | {f"{name}, before": one for name, one in found["before"].items()}
    return [
        *representations(named),
        "",
        "CPU paths and `before` are from the second run, on a slower machine (table on the GPU took twice "
        "the time) and without the change below. `dhe@cuda:0` was not measured after it.",
    ]


def paths(found: Mapping[str, Any]) -> list[str]:
    """Latency of representations on both devices. found: a profile."""
    return representations({one["path"]["name"]: one["latency"] for one in found["paths"]})


def representations(latencies: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Latencies of paths. latencies: rows, median_s and tail_s, by name."""
    rows = []
    for name, one in latencies.items():
        latency = LatencyModel(rows=one["rows"], median_s=one["median_s"], tail_s=one["tail_s"])
        rows.append([name, *(f"{1e3 * latency.median(batch):.2f}" for batch in PROFILED)])
    return [
        "## Representations",
        "",
        "`polyrec profile` of the Kaggle shape (`benchmarks.gpu.representations`; DHE with 1,024 hashes, "
        "512-256), fp32, median milliseconds of a batch, encoding included: one lane on one core, or the "
        "GPU.",
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
        f"`polyrec bench` of a plan within {1e3 * found['conditions']['slo_s']:g} ms: share in time / rows "
        "per second in time, weighted by accuracy.",
        "",
        *markdown_table(["queries/s", *trials], rows),
    ]


def tiers(found: Mapping[str, Any]) -> list[str]:
    """Servers with rows in tiers, by benchmarks.gpu.tiers."""
    return [
        f"{found['rows'] / 1e6:.1f} M rows x 64 (`benchmarks.gpu.tiers`), a quarter of the bytes on the "
        "device, and an eighth in host memory where the rest is on disk. Requests of 128 rows; *hot* is "
        "every second one, with all rows on the device. Closed loop of 16 connections, then "
        f"{found.get('rate', 0):,.0f} Poisson requests/s with a budget of 50 ms.",
        "",
        *tiers_table(found),
    ]


def tiers_table(found: Mapping[str, Any]) -> list[str]:
    """The cases of benchmarks.gpu.tiers, as a table."""
    kinds = ("hot_p50", "hot_p99", "other_p50", "other_p99")
    cells = []
    for name, one in found["cases"].items():
        looked_up = "/".join(f"{one[tier]:.0%}" for tier in ("device", "host", "cache", "disk"))
        in_time = f"{one['in_time']:.1%}" if "in_time" in one else ""
        quantiles = [one.get(f"{kind}_ms") for kind in kinds]
        shown = ["" if ms is None else f"{ms:.1f}" for ms in quantiles]
        cells.append([name, f"{one['rows_per_s']:,.0f}", looked_up, in_time, *shown])
    head = [
        "rows",
        "rows/s",
        "lookups: device/host/cache/disk",
        "in time",
        "hot p50, ms",
        "p99",
        "other p50",
        "p99",
    ]
    return markdown_table(head, cells)


def training(found: Mapping[str, Any]) -> list[str]:
    """Steps of a training on both devices, by benchmarks.gpu.training."""
    return [
        "Steps of `polyrec train` on generated clicks in trivago's shape, drawing and encoding on the host "
        "included; one core, or the GPU and one core.",
        "",
        *training_table(found),
    ]


def training_table(found: Mapping[str, Any]) -> list[str]:
    """The cases of benchmarks.gpu.training, as a table."""
    cells = []
    for one in found["cases"]:
        cpu, device = one["rows_per_s"]["cpu"], one["rows_per_s"]["device"]
        what = [one["kind"], one["net"], one["precision"], f"{one['batch_rows']:,}"]
        cells.append([*what, f"{cpu:,.0f}", f"{device:,.0f}", f"{device / cpu:.2f}"])
    head = ["representation", "net", "precision", "rows a step", "CPU, rows/s", "device, rows/s", "times"]
    return markdown_table(head, cells)


OPTIONAL = {
    "bench": ("Routing over both devices, live", benched),
    "tiers": ("Served from tiers", tiers),
    "training": ("Training", training),
}
"""Heading and text of the sections whose figures may be missing, by the name of their file."""


def optional(folder: Path) -> Iterator[list[str]]:
    """Returns the sections whose figures may be missing."""
    for name, (heading, section) in OPTIONAL.items():
        file = folder / f"gpu-{name}.json"
        yield [
            f"## {heading}",
            "",
            *(section(json.loads(file.read_text())) if file.exists() else ["Not measured."]),
        ]


def page(folder: Path) -> str:
    """Returns the page's text. folder: of the figures."""
    look, served, profiled, ran = (
        json.loads((folder / f"gpu-{name}.json").read_text())
        for name in ("lookup", "serving", "profile", "simulated")
    )
    again = folder / "gpu-paths.json"
    shown = paths(json.loads(again.read_text())) if again.exists() else profile(profiled)
    parts = [kernel(look), predictions(look), serving(served), shown, simulated(ran), *optional(folder)]
    return TEXT.read_text().replace("{tables}", "\n\n".join("\n".join(part) for part in parts))


if __name__ == "__main__":
    (Path(sys.argv[1]) / "gpu.md").write_text(page(Path(sys.argv[1])))
