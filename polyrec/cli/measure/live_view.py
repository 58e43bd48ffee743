"""Runs `polyrec top`: scrapes /metrics and shows what happened between two scrapes.

    /metrics, /metrics -> Interval (interval.py) -> lines -> terminal

All figures come from /metrics, which servers of every version have, so the view agrees with Prometheus.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from urllib.error import HTTPError, URLError

from polyrec.cli.measure.interval import Interval, interval
from polyrec.loadtest.drivers.server_pages import MetricSamples, read_metrics
from polyrec.loadtest.parser import BOLD, PLAIN, RED, colored
from polyrec.models.errors import PolyrecError
from polyrec.models.text import error_in
from polyrec.models.text_table import aligned

CLEAR = "\x1b[H\x1b[J"
COLOR = re.compile(r"(\x1b\[[0-9;]*m)")
OTHER_COLUMNS, MIN_NAME = 62, 18
"""Columns of the paths' table beside the name, and the least that a name keeps."""
MAX_ERROR_BYTES = 4096
MAX_COLUMNS = 1000
"""Columns where there is no terminal: nothing is cut."""
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Switches to the terminal's alternate screen without a cursor, and back."""


def lines(found: Interval, url: str, color: bool, columns: int = MAX_COLUMNS) -> list[str]:
    """Formats the view as lines: verdict, figures, paths, lanes. columns: terminal width, to which names
    are cut.
    """
    bold, red, plain = (BOLD, RED, PLAIN) if color else ("", "", "")
    if math.isnan(found.in_slo):
        verdict = "no requests"
    elif found.in_slo >= found.promised:
        verdict = f"{found.in_slo:.2%} within the latency budget (SLO {found.promised:.0%})"
    else:
        verdict = f"{red}{found.in_slo:.2%} within the latency budget{plain} (SLO {found.promised:.0%})"
    missed = "  ".join(f"{name} {rate:,.1f}" for name, rate in found.outcomes.items() if name != "ok")
    head = [
        f"{bold}{found.model or found.bundle}{plain} at {url}, policy {found.policy}"
        + (", one of several models (--model)" if found.model else ""),
        f"{bold}{verdict}{plain}",
        "",
        f"{found.rate:,.1f} requests/s   {found.rows_rate:,.0f} rows/s of {found.capacity_rows:,.0f}   "
        f"information/s {found.information:,.1f}",
        f"p50 {_ms(found.p50_s)}   p99 {_ms(found.p99_s)}   "
        f"queue {found.queue_rows:,.0f} rows   in flight {found.in_flight:,.0f}",
        f"not in time, per s: {missed}" if missed else "",
        *([f"phases of a request, ms: {_phases(found.phases_s, color)}"] if found.phases_s else []),
        "",
    ]
    names = max(MIN_NAME, columns - OTHER_COLUMNS)
    paths = [["path", "answers/s", "share", "p50", "p99", "degraded/s", "quality"]]
    paths += [
        [
            _shortened(p.name, names),
            *(f"{p.rate:,.1f}", f"{p.share:.0%}", _ms(p.p50_s), _ms(p.p99_s), f"{p.degraded_rate:,.1f}"),
            "" if p.quality is None else f"{p.quality:.4f}",
        ]
        for p in found.paths
    ]
    lanes = [["lane", "device", "busy", "breaker", "measured/profiled"]]
    lanes += [
        [
            _shortened(lane.name, names),
            lane.device,
            f"{min(lane.busy, 1):.0%}" if lane.up else "dead",
            lane.breaker,
            f"{lane.correction:.2f}",
        ]
        for lane in found.lanes
    ]
    return [*head, *aligned(paths), "", *aligned(lanes, left=2)]


def fitted(shown: Sequence[str], columns: int, rows: int) -> list[str]:
    """Cuts lines to the terminal, where longer ones would wrap and more would scroll; notes how many are
    left out.
    """
    kept = list(shown) if len(shown) <= rows else list(shown[: max(0, rows - 1)])
    if len(kept) < len(shown):
        kept.append(f"... {len(shown) - len(kept)} more lines")
    return [_cut(line, columns) for line in kept]


def _cut(line: str, columns: int) -> str:
    """Cuts the visible part of a line, keeping its colors."""
    left, parts = columns, []
    for part in COLOR.split(line):
        if COLOR.fullmatch(part):
            parts.append(part)
        else:
            parts.append(part[:left])
            left -= len(parts[-1])
    return "".join(parts)


def _shortened(name: str, max_length: int) -> str:
    """Shortens a long name in the middle, because paths differ at their ends."""
    if len(name) <= max_length:
        return name
    tail = (max_length - 2) // 2
    return f"{name[: max_length - 2 - tail]}..{name[len(name) - tail :]}"


def _phases(phases_s: Mapping[str, float], color: bool) -> str:
    """Formats the mean time in each phase, longest first."""
    slowest, *others = sorted(phases_s, key=lambda phase: -phases_s[phase])
    bold, plain = (BOLD, PLAIN) if color else ("", "")
    shown = [f"{bold}{slowest} {1e3 * phases_s[slowest]:.2f}{plain}"]
    return "  ".join([*shown, *(f"{phase} {1e3 * phases_s[phase]:.2f}" for phase in others)])


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:.2f} ms"


def watch(url: str, every_s: float, once: bool, as_json: bool, model: str | None = None) -> int:
    """Shows intervals until Ctrl-C; only one if `once` is set or standard output is not a terminal.

    model: name of one of several models; None: the first. Raises PolyrecError if no server or no such model
    answers.
    """
    out = sys.stdout
    live = out.isatty() and not once and not as_json
    before, begun_s = _scrape(url, model), time.monotonic()
    if live:
        out.write(ENTER)
    try:
        while True:
            time.sleep(every_s)
            after, now_s = _scrape(url, model), time.monotonic()
            found = interval(before, after, now_s - begun_s)
            if as_json:
                print(json.dumps(_finite(asdict(found))))
                return 0
            size = shutil.get_terminal_size()
            shown = lines(found, url, colored(out), size.columns if live else MAX_COLUMNS)
            if not live:
                print("\n".join(shown))
                return 0
            shown = [*fitted(shown, size.columns, size.lines - 2), "", "Ctrl-C ends"]
            out.write(CLEAR + "\n".join(shown))
            out.flush()
            before, begun_s = after, now_s
    except KeyboardInterrupt:
        return 0
    finally:
        if live:
            out.write(LEAVE)
            out.flush()


def _scrape(url: str, model: str | None) -> MetricSamples:
    """Reads the metrics of a model. Raises PolyrecError if no server or no such model answers."""
    try:
        samples = read_metrics(url)
    except (OSError, URLError, ValueError) as e:
        raise PolyrecError(f"no metrics at {url}: {_reason(e)}") from None
    if not list(samples.series("polyrec_ready")):
        raise PolyrecError(f"{url}/metrics has no metrics of Polyrec")
    return one_model(samples, model)


def _reason(error: Exception) -> str:
    """Returns why metrics could not be read, in the server's words if it gives any."""
    if isinstance(error, HTTPError):
        with error, suppress(OSError, ValueError):
            said = error_in(error.read(MAX_ERROR_BYTES))
            if said is not None:
                return said
    return str(getattr(error, "reason", None) or error)


def one_model(samples: MetricSamples, model: str | None) -> MetricSamples:
    """Returns the series of one of several models, whose paths and lanes may share names; None: the first.

    Raises PolyrecError for an unknown model.
    """
    models = samples.models
    if model is not None and model not in models:
        known = ", ".join(f"'{name}'" for name in models)
        raise PolyrecError(f"no model '{model}'; " + (f"there are {known}" if known else "there is only one"))
    return samples.for_model(model or models[0]) if models else samples


def _finite(value: object) -> object:
    """Returns the JSON value with NaN replaced by null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
