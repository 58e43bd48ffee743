"""Writes docs/results/mprec.md: the paper's figures and ours, and all assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.routing.mprec.evaluation import best, factor
from benchmarks.routing.mprec.paths import CHIPS, KINDS
from polyrec.models.amounts import percent, rate
from polyrec.report.chart import Chart, Series, draw, picture
from polyrec.report.page import Page, Section, Table
from polyrec.report.text import markdown

COMMAND = "python -m benchmarks.routing.mprec"
CPU, GPU, RULES = "static:table@cpu", "static:table@gpu", ("mprec", "priced")
PAPER = {"kaggle": ("2.49", "0.19"), "terabyte": ("3.76", "0.22")}
"""By model: correct-prediction throughput over its baseline, and points of accuracy gained (abstract)."""
MATCHED = "16.65"
"""Maximum speed-up from matching GPUs, TPUs and IPUs with compatible representations (abstract)."""
MIN_SHARE = 0.005
SLOW_CPU = "the CPU's FLOP/s, halved"
Found = dict[str, Any]


def write(found: Found, folder: Path) -> str:
    """Writes mprec.md and mprec.png; returns the page."""
    text = markdown(page(found, folder)).rstrip() + "\n"
    (folder / "mprec.md").write_text(text)
    return text


def page(found: Found, folder: Path) -> Page:
    """Returns the page of the results of `run`; writes its chart to the folder."""
    charts = _charts(found)
    shown = picture(
        "Correct predictions a second within the SLA by load, one query a batch",
        "At a load of 1 all lanes are busy on their fastest paths.",
        lambda theme: draw(charts, theme),
        "mprec.png",
    )
    (folder / shown.file).write_bytes(shown.light)
    return Page(
        "Results: MP-Rec's own evaluation, simulated",
        f"{_finding(found)}\n\n"
        "MP-Rec (Hsia et al., ASPLOS'23, arXiv 2302.10872) served 10,000 queries on a CPU with a GPU, and "
        "matched representations with GPUs, TPUs and IPUs. This page repeats the experiment in Polyrec's "
        "simulator on **described** machines: the figures follow from published specifications and the "
        "assumptions below, and are not measurements of such machines. Only the paper's abstract was at "
        f"hand; everything else about it is from memory. `{COMMAND}` writes this page ({found['queries']:,} "
        f"queries a run; {found['machine']}, {found['cpu_s'] / 60:.0f} minutes of one core, "
        f"{found['made'][:10]}; every run is in [mprec.json](mprec.json)).",
        (
            Section("Beside the paper", _beside_text(found), table=_beside(found)),
            Section("By load", _by_load_text(found), table=_by_load(found), pictures=(shown,)),
            Section("By SLA", _by_sla_text(found), table=_by_sla(found)),
            Section("TPUs and IPUs", _served_text(found), table=_served(found)),
            Section("Representations matched to devices", _matching_text(), table=_matching(found)),
            Section("Sensitivity", _sensitivity_text(found), table=_sensitivity(found)),
            Section("What is assumed", items=_assumed(found)),
            Section("Why our factors differ from the paper's", items=_why(found)),
        ),
    )


def _finding(found: Found) -> str:
    alone = [_of(found, model, "gpu", False)[0] for model in _models(found)]
    ours = " and ".join(_times(factor(f, "priced", CPU)) for f in alone)
    theirs = " and ".join(PAPER[model][0] for model in _models(found))
    return (
        f"On a CPU with a GPU and one query a batch, Polyrec's router makes {ours} times the correct "
        f"predictions of a table on the CPU ({' and '.join(_models(found))}; the paper: {theirs})."
    )


def _beside(found: Found) -> Table:
    rows = []
    for model in _models(found):
        both = [_of(found, model, "gpu", merge)[0] for merge in (False, True)]
        for over, paper in ((CPU, PAPER[model][0]), (GPU, "")):
            what = f"{model}: correct predictions/s over {_named(over)}"
            rows.append((what, paper, *(_factors(f, over) for f in both)))
        rows.append((f"{model}: accuracy over table, points", PAPER[model][1], *map(_gains, both)))
    for m in found["matching"]:
        if m["rows"] == min(n["rows"] for n in found["matching"]):
            large = next(n for n in found["matching"] if n["model"] == m["model"] and n["rows"] > m["rows"])
            what = f"{m['model']}: rows/s of one path over table@cpu, at most"
            rows.append((what, MATCHED, f"{max(_values(m)):.1f}", f"{max(_values(large)):.1f}"))
    return Table(("`mprec` / `priced`", "paper", "one query a batch", "queries merged"), tuple(rows))


def _beside_text(found: Found) -> str:
    first = found["serving"][0]
    low = min(run["load"] for run in first["runs"])
    return (
        f"A CPU with a GPU, SLA {first['sla_ms']:g} ms. `mprec` is MP-Rec's rule, `priced` Polyrec's. "
        "Correct predictions a second within the SLA are each policy's highest over loads up to 1, also for "
        f"baselines. Accuracy is that of the answers at a load of {low:g}. The last lines are the fastest of "
        "all representations and devices below."
    )


def _by_load(found: Found) -> Table:
    rows = []
    for model in _models(found):
        for run in _of(found, model, "gpu", False)[0]["runs"]:
            rows.append(
                (
                    model,
                    f"{run['load']:g}",
                    rate(run["queries_per_s"]),
                    _named(run["policy"]),
                    rate(run["correct_per_s"]),
                    percent(run["in_time"]),
                    f"{run['accuracy']:.5f}",
                    _mix(run),
                )
            )
    head = ("model", "load", "queries/s", "policy", "correct/s", "in time", "accuracy", "rows by path")
    return Table(head, tuple(rows))


def _by_load_text(found: Found) -> str:
    return f"A CPU with a GPU, SLA {found['serving'][0]['sla_ms']:g} ms, one query a batch."


def _by_sla(found: Found) -> Table:
    rows = []
    for model in _models(found):
        for f in (*_of(found, model, "gpu", False), *_of(found, model, "gpu", True)):
            low = min(run["load"] for run in f["runs"])
            for policy in RULES:
                most = _best(f, policy)
                rest = next(run for run in f["runs"] if (run["policy"], run["load"]) == (policy, low))
                rows.append(
                    (
                        model,
                        "merged" if f["merge"] else "alone",
                        f"{f['sla_ms']:g}",
                        policy,
                        _times(factor(f, policy, CPU)),
                        _times(factor(f, policy, GPU)),
                        percent(most["in_time"]),
                        _mix(most),
                        percent(rest["in_time"]),
                        _mix(rest),
                    )
                )
    head = (
        "model",
        "queries",
        "SLA ms",
        "policy",
        "over table@cpu",
        "over table@gpu",
        "in time",
        "rows by path",
    )
    return Table((*head, "in time, low load", "rows by path, low load"), tuple(rows))


def _by_sla_text(found: Found) -> str:
    low = min(run["load"] for run in found["serving"][0]["runs"])
    return (
        "A CPU with a GPU, at the load at which the policy answers most; the last two columns are at a load "
        f"of {low:g}. `alone`: one query a batch; `merged`: waiting queries share batches, as Polyrec serves "
        "them. With a longer SLA `mprec` uses better paths until the queue fills the SLA, and is sometimes "
        "late; `priced` reserves time for arrivals."
    )


def _served(found: Found) -> Table:
    rows = []
    for f in found["serving"]:
        if f["machine"] != "gpu":
            for policy in (f"static:table@{f['machine']}", *RULES):
                if (most := best(f, policy)) is not None:
                    times = _times(factor(f, policy, CPU))
                    told = (percent(most["in_time"]), f"{most['accuracy']:.5f}", _mix(most))
                    rows.append((f["model"], _board(f["machine"]), _named(policy), times, *told))
    head = ("model", "CPU and", "policy", "over table@cpu", "in time", "accuracy", "rows by path")
    return Table(head, tuple(rows))


def _served_text(found: Found) -> str:
    return (
        "Query serving with other accelerators, four chips each, one query a batch, SLA "
        f"{found['serving'][0]['sla_ms']:g} ms, at the load at which the policy answers most."
    )


def _matching(found: Found) -> Table:
    rows = []
    for m in found["matching"]:
        for device, factors in m["factors"].items():
            rows.append((m["model"], f"{m['rows']:,}", device, *(_times(factors[k]) for k in KINDS)))
    return Table(("model", "rows", "device", *KINDS), tuple(rows))


def _matching_text() -> str:
    return (
        "Rows/s of one path alone, relative to table on the CPU, in batches of the given rows, by the "
        "roofline. Empty: it does not fit. Each chip is a lane with a copy of its own."
    )


def _sensitivity(found: Found) -> Table:
    head = ["changed alone"]
    lines: dict[str, list[str]] = {}
    for model in _models(found):
        head += [f"{model}: over table@cpu", "over table@gpu", "accuracy, points"]
    for f in found["sensitivity"]:
        lines.setdefault(f["name"], [f["name"]]).extend([_factors(f, CPU), _factors(f, GPU), _gains(f)])
    return Table(tuple(head), tuple(map(tuple, lines.values())))


def _sensitivity_text(found: Found) -> str:
    first = found["sensitivity"][0]
    low = min(run["load"] for run in first["runs"])
    return (
        f"A CPU with a GPU, one query a batch, SLA {first['sla_ms']:g} ms, {found['few']:,} queries a run: "
        f"`mprec` / `priced`, and accuracy above table's at a load of {low:g}. The capacity is computed "
        "again for each line. Paper: 2.49 and 3.76."
    )


def _assumed(found: Found) -> tuple[str, ...]:
    a = found["assumed"]
    return (
        f"**Speeds.** Every device achieves {a['flops']:.0%} of its data sheet's FLOP/s and "
        f"{a['bandwidth']:.0%} of its bandwidth. A batch starts in {1e6 * a['cpu_start_s']:.0f} us on a "
        f"core, in {1e6 * a['start_s']:.0f} us on an accelerator. The rest is `roofline.py`: the "
        "longer of arithmetic and memory traffic, plus the transfer of the ids. The 99th percentile is 1.4 "
        "times the median.",
        "**Machines** (`planner/machines/mprec-{large,tpu,ipu}.yaml`). 16 cores with AVX2, 76 GB/s, 32 "
        "GB; a GPU with a V100's figures (15.7 TFLOP/s fp32, 900 GB/s, 32 GB); TPU v3 (123 TFLOP/s bf16, "
        "900 GB/s, 32 GiB a chip: cloud.google.com/tpu/docs/v3); GC200 (62.5 TFLOP/s fp32, 900 MB of "
        "SRAM; 180 TB/s for the four of an IPU-M2000: Graphcore, 2020). The paper's CPU and GPU are from "
        "memory. The links to the host (PCIe 3, 100 Gbit/s Ethernet) are assumed, and so is that bf16 on the "
        "TPU costs no accuracy.",
        "**Models.** Shapes and rows as published, fp32; DHE has 1,024 hashes and decoders 1024-512-256; "
        "`select` computes the five largest tables. The accuracies are from memory (Kaggle: table 78.79%, "
        "DHE 78.94%, hybrid 78.98%; Terabyte: 80.81%, 80.99%, 81.03%); hybrid's lead is the abstract's "
        "0.19 and 0.22 points. `select` is assumed halfway between table and DHE. There are no quantized "
        "rows, as in the paper.",
        f"**Traffic.** Poisson; lognormal sizes, mean {a['rows']:.0f} rows (from memory), sigma 0.2 "
        "(DeepRecSys's scripts), clipped where queries must not share a batch. The first 0.3 s are not "
        "counted.",
        "**Left out.** Reading and answering requests, MP-Rec's caches of computed vectors, tables split "
        "over chips, IPU streaming memory, and anything else that keeps real devices below a roofline.",
    )


def _why(found: Found) -> tuple[str, ...]:
    models = _models(found)
    alone, merged = (factor(_of(found, models[-1], "gpu", m)[0], GPU, CPU) for m in (False, True))
    slow = [f for f in found["sensitivity"] if f["name"] == SLOW_CPU]
    tpu = [_gains(_of(found, model, "tpu", False)[0]) for model in models]
    return (
        "**Whether queries share a batch** matters most. A query of 128 rows on an accelerator is mostly "
        f"start time: on {models[-1]}, table on the GPU makes {_times(alone)} times the predictions of table "
        f"on the CPU with one query a batch, and {_times(merged)} times if waiting queries are merged. The "
        "paper's factors are similar to those without merging. With merging, the gain comes from the GPU "
        "rather than from the choice: little is left over table on the GPU.",
        "**The ratio of the devices is assumed.** Factors change with the CPU's efficiency and the "
        "accelerator's start time, which depend on the software of 2022. With half of the CPU's FLOP/s, a "
        f"quarter of its data sheet's, they are {' and '.join(_factors(f, CPU) for f in slow)} "
        f"({' and '.join(models)}; the paper: 2.49 and 3.76). Bandwidth, the link to the host (260 bytes a "
        "row) and the differences of accuracy hardly change them.",
        "**At capacity the factor is that of the second device.** Nearly all rows then go to tables, on both "
        "devices. A better representation makes 0.2% more predictions correct, where there is time for it. "
        "On one GPU there is time for part of the rows; on the TPU board, at the same share of a larger "
        f"capacity, for more (gain of accuracy {' and '.join(tpu)} points).",
        "**Memory** limits no static table here: both models fit 32 GB of DRAM and of GPU memory. No chip of "
        "an IPU holds either model's tables, so it can serve only `select` and DHE, which is the paper's "
        "point about matching. The abstract does not say which pair gave 16.65; that these figures are near "
        "it follows from the assumptions.",
        "**The baselines are strong.** Static paths have the order by deadline, the splitting and the early "
        "rejection of `priced`. Without rejection, table on the CPU would answer nearly everything late past "
        "its capacity.",
        "**`mprec` is a reading of the rule.** Its prediction includes the queue: a query is bound to a path "
        "whose 99th percentile fits behind the mean queue, so some percent are late wherever better paths "
        "fill the SLA. It rejects nothing, and where no path fits it uses the one that would execute the "
        "query alone soonest, so past capacity most queries are late.",
    )


def _charts(found: Found) -> Sequence[Chart]:
    charts = []
    for model in _models(found):
        f = _of(found, model, "gpu", False)[0]
        series = []
        for color, policy in enumerate(dict.fromkeys(run["policy"] for run in f["runs"])):
            runs = [run for run in f["runs"] if run["policy"] == policy]
            x, y = (np.asarray([run[key] for run in runs], np.float64) for key in ("load", "correct_per_s"))
            series.append(Series(_named(policy), x, y, color))
        title = f"{model}, SLA {f['sla_ms']:g} ms"
        charts.append(Chart(title, "", "load", "correct predictions/s in time", tuple(series)))
    return charts


def _models(found: Found) -> list[str]:
    return list(dict.fromkeys(f["model"] for f in found["serving"]))


def _of(found: Found, model: str, machine: str, merge: bool) -> list[Found]:
    """Returns the model's results by SLA, shortest first."""
    wanted = (model, machine, merge)
    return [f for f in found["serving"] if (f["model"], f["machine"], f["merge"]) == wanted]


def _best(f: Found, policy: str) -> Found:
    most = best(f, policy)
    assert most is not None
    return most


def _board(machine: str) -> str:
    return next(label for label, (name, chips) in CHIPS.items() if name == machine and chips == 4)


def _named(policy: str) -> str:
    return policy.removeprefix("static:")


def _values(matched: Found) -> list[float]:
    return [v for factors in matched["factors"].values() for v in factors.values() if v is not None]


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _factors(f: Found, over: str) -> str:
    return " / ".join(_times(factor(f, policy, over)) for policy in RULES)


def _gains(f: Found) -> str:
    """Returns each rule's accuracy above table's at the lowest load, in points."""
    low = min(run["load"] for run in f["runs"])
    at = {run["policy"]: run["accuracy"] for run in f["runs"] if run["load"] == low}
    return " / ".join(f"{100 * (at[policy] - at[CPU]):.2f}" for policy in RULES)


def _mix(run: Found) -> str:
    shares = sorted(run["mix"].items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= MIN_SHARE)
