"""Runs `polyrec top`: scrapes /metrics and shows what happened between two scrapes.

    /metrics, /metrics -> Interval (figures of the time between) -> lines -> terminal

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
from dataclasses import asdict, dataclass
from urllib.error import URLError

from polyrec.loadtest.drivers.server_pages import MetricSamples, read_metrics
from polyrec.loadtest.parser import BOLD, PLAIN, RED, colored
from polyrec.models.errors import PolyrecError
from polyrec.models.text_table import aligned

PHASES = ("parse", "queue", "encode", "embed", "dense", "serialise")
"""Phases of a request, in their order."""
MISSES = ("late", "overloaded", "expired", "unavailable", "error")
"""Outcomes that miss the SLO."""
CLEAR = "\x1b[H\x1b[J"
COLOR = re.compile(r"(\x1b\[[0-9;]*m)")
OTHER_COLUMNS, MIN_NAME = 62, 18
"""Columns of the paths' table beside the name, and the least that a name keeps."""
MAX_COLUMNS = 1000
"""Columns where there is no terminal: nothing is cut."""
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Switches to the terminal's alternate screen without a cursor, and back."""


@dataclass(frozen=True, slots=True)
class PathRow:
    """Figures of a path. rate: answers/s. share: of all answers. p99_s: NaN without answers. quality: None
    if unknown.
    """

    name: str
    rate: float
    share: float
    p50_s: float
    p99_s: float
    degraded_rate: float
    quality: float | None


@dataclass(frozen=True, slots=True)
class LaneRow:
    """Figures of a lane. busy: share of the interval in which it worked. breaker: closed, open or probing."""

    name: str
    device: str
    up: bool
    busy: float
    breaker: str
    correction: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Figures of a server between two scrapes.

    model: name of the model if there are several, else None.
    rate: requests/s with any outcome. outcomes: requests/s by outcome.
    in_slo: share within the latency budget, NaN if no request counts.
    information: per second.
    phases_s: mean time per request in each phase, where a batch's time is divided among its requests; empty
    without answers.
    """

    bundle: str
    policy: str
    seconds: float
    rate: float
    rows_rate: float
    outcomes: dict[str, float]
    in_slo: float
    promised: float
    p50_s: float
    p99_s: float
    information: float
    phases_s: dict[str, float]
    queue_rows: float
    in_flight: float
    capacity_rows: float
    paths: tuple[PathRow, ...]
    lanes: tuple[LaneRow, ...]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class _Scrapes:
    """Two scrapes of one server, `seconds` apart."""

    before: MetricSamples
    after: MetricSamples
    seconds: float

    def rate(self, name: str, **labels: str) -> float:
        """Returns a counter's growth per second."""
        return (self.after.total(name, **labels) - self.before.total(name, **labels)) / self.seconds

    def answered(self, **labels: str) -> tuple[int, float, float]:
        """Returns the number of answers, and their median and p99 in seconds."""
        ok, late = (
            self.after.buckets("polyrec_request_seconds", outcome=outcome, **labels)
            - self.before.buckets("polyrec_request_seconds", outcome=outcome, **labels)
            for outcome in ("ok", "late")
        )
        both = ok if not late.total else late if not ok.total else type(ok)(ok.edges, ok.counts + late.counts)
        return both.total, both.quantile(0.5), both.quantile(0.99)


def interval(before: MetricSamples, after: MetricSamples, seconds: float) -> Interval:
    """Returns the figures of the time between two scrapes of one server."""
    scrapes = _Scrapes(before, after, seconds)
    rate = scrapes.rate
    outcomes = {
        outcome: found
        for outcome in _values(after, "polyrec_requests_total", "outcome")
        if (found := rate("polyrec_requests_total", outcome=outcome)) > 0
    }
    missed = sum(outcomes.get(outcome, 0.0) for outcome in MISSES)
    counted = missed + outcomes.get("ok", 0.0)
    paths = _paths(scrapes)
    answers_rate = sum(path.rate for path in paths)
    _, p50_s, p99_s = scrapes.answered()
    return Interval(
        bundle=_labels(after, "polyrec_build_info").get("bundle", "?"),
        policy=_labels(after, "polyrec_policy_info").get("policy", "?"),
        seconds=seconds,
        rate=sum(outcomes.values()),
        rows_rate=rate("polyrec_rows_total"),
        outcomes=outcomes,
        in_slo=outcomes.get("ok", 0.0) / counted if counted else math.nan,
        promised=after.total("polyrec_promised_share"),
        p50_s=p50_s,
        p99_s=p99_s,
        information=rate("polyrec_information_total"),
        phases_s={
            phase: rate("polyrec_phase_seconds_sum", phase=phase) / answers_rate
            for phase in (PHASES if answers_rate else ())
        },
        queue_rows=after.total("polyrec_queue_rows"),
        in_flight=after.total("polyrec_in_flight_queries"),
        capacity_rows=after.total("polyrec_capacity_rows_per_second"),
        paths=paths,
        lanes=_lanes(scrapes),
        model=next(iter(after.models), None),
    )


def _paths(scrapes: _Scrapes) -> tuple[PathRow, ...]:
    after = scrapes.after
    answered = {path: scrapes.answered(path=path) for path in _values(after, "polyrec_path_value", "path")}
    total = sum(count for count, _, _ in answered.values())
    return tuple(
        PathRow(
            path,
            count / scrapes.seconds,
            count / total if total else 0.0,
            p50_s,
            p99_s,
            scrapes.rate("polyrec_degraded_total", path=path),
            next((quality for _, quality in after.series("polyrec_path_quality", path=path)), None),
        )
        for path, (count, p50_s, p99_s) in answered.items()
    )


def _lanes(scrapes: _Scrapes) -> tuple[LaneRow, ...]:
    after = scrapes.after
    return tuple(
        LaneRow(
            lane,
            _labels(after, "polyrec_lane_info", lane=lane).get("device", "?"),
            after.total("polyrec_lane_up", lane=lane) > 0,
            scrapes.rate("polyrec_lane_busy_seconds_total", lane=lane),
            _labels(after, "polyrec_lane_breaker", lane=lane).get("state", "?"),
            after.total("polyrec_lane_correction", lane=lane),
        )
        for lane in _values(after, "polyrec_lane_up", "lane")
    )


def _values(samples: MetricSamples, name: str, label: str) -> list[str]:
    """Returns the distinct values of one label of a metric."""
    return list(dict.fromkeys(labels[label] for labels, _ in samples.series(name)))


def _labels(samples: MetricSamples, name: str, **labels: str) -> Mapping[str, str]:
    """Returns the labels of the series whose value is 1 in an information metric; empty if there is none."""
    return next((found for found, value in samples.series(name, **labels) if value), {})


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
        raise PolyrecError(f"no metrics at {url}: {getattr(e, 'reason', None) or e}") from None
    if not list(samples.series("polyrec_ready")):
        raise PolyrecError(f"{url}/metrics has no metrics of Polyrec")
    return one_model(samples, model)


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
