"""The metrics of one server, for Prometheus, the status page and docs/metrics.md.

Requests, their phases, executed batches and control ticks are recorded as they happen; the router's state
(rates, prices, corrections, breakers) and the tiers' figures are read at every scrape. Label values are
bounded: endpoints, paths, lanes, outcomes, reasons, features and tiers. Each server has its own instance, so
that several can share a process.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.figures import Figures
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.drift import DriftReport
from polyrec.planner.routing.query import DEGRADED
from polyrec.server.clock import clock
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.metrics.counting import OK, BatchMetrics, EndpointMetrics, LaneMetrics, Outcomes
from polyrec.server.metrics.error_budget import SLO_MISSES, SLO_SHARE, ErrorBudget
from polyrec.server.metrics.event_loop import LoopMetrics
from polyrec.server.metrics.events import Events, Incidents
from polyrec.server.metrics.history import History, Sample
from polyrec.server.metrics.instruments import AnyFamily, Registry
from polyrec.server.metrics.live_metrics import LiveMetrics, PredictionLogMetrics
from polyrec.server.metrics.rollout_metrics import RolloutMetrics
from polyrec.server.metrics.router_metrics import RouterMetrics
from polyrec.server.metrics.statistics import Statistics
from polyrec.server.metrics.tier_metrics import TierMetrics, UpdateMetrics
from polyrec.server.metrics.unknown_ids import UnknownIdCounter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OUTCOMES = (OK, *SLO_MISSES, "invalid", "cancelled")
ACCESS_REASONS = ("unauthorized", "guessing", "forbidden", "limited")
"""Reasons for rejection by authentication or rights; see the metric's help."""
REASONS = tuple(reason.value for reason in DEGRADED)

# Common latency targets (0.5, 1, 2, 5, 10, 20, 50, 60, 80, 100 ms ...) are edges, so that the share within
# one is exact. Between 0.5 and 100 ms neighboring edges are at most 8.2% apart, which bounds the error of an
# interpolated p50 or p99; it is within 5% unless the distribution is concentrated in one bucket.
_DECADE = (1, 1.08, 1.16, 1.25, 1.35, 1.45, 1.55, 1.65, 1.78, 1.9, 2, 2.15, 2.3, 2.45, 2.6, 2.8, 3, 3.2,
           3.4, 3.65, 3.9, 4.2, 4.5, 4.8, 5, 5.4, 5.8, 6, 6.4, 6.8, 7.3, 7.8, 8, 8.6, 9.3)  # fmt: skip
REQUEST_EDGES_S = (
    *(0.0001, 0.0002, 0.0003, 0.0004),
    *(round(1e-4 * edge, 8) for edge in _DECADE if edge >= 5),
    *(round(1e-3 * edge, 8) for edge in _DECADE),
    *(round(1e-2 * edge, 8) for edge in _DECADE),
    *(0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0),
)
PHASE_EDGES_S = (*(round(10.0**d * e, 8) for d in range(-5, 0) for e in (1, 2, 3, 5, 7)), 1.0)
ROW_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


SERVER_WIDE = frozenset(
    (
        "polyrec_loop_waited_seconds",
        "polyrec_gc_pause_seconds",
        "polyrec_access_refused",
        "polyrec_capped_budgets",
        "polyrec_limited",
        "polyrec_connections",
        "polyrec_buffered_bytes",
        "polyrec_promised_share",
    )
)
"""Metrics that concern all models of a server: only the default model's are exposed, without a label."""


class Metrics:
    """The instruments of one server, or of one of its models.

    model: the label `model` of its metrics; None for the only model, whose metrics have no such label.
    """

    def __init__(self, model: str | None = None) -> None:
        constant = {} if model is None else {"model": model}
        self._registry = registry = Registry(constant, SERVER_WIDE)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._add_requests(registry)
        self._add_batches(registry)
        self._tiers = TierMetrics(registry)
        self._updates = UpdateMetrics(registry)
        self.lookups, self.hits = self._tiers.lookups, self._tiers.hits
        self._unknown = registry.counter(
            "polyrec_oov_lookups", "Lookups of values that are not in the vocabulary.", "feature"
        )
        self._routed = RouterMetrics(registry)
        self._loop = LoopMetrics(registry)
        self.collected = self._loop.collected
        self.generations = registry.counter(
            "polyrec_generations", "Plans put into service: the first one, every reload and every rollback."
        )
        self._add_access(registry)
        self._log = PredictionLogMetrics(registry)
        self.feedback = self._log.feedback
        self.live = LiveMetrics(registry)
        self.rollout = RolloutMetrics(registry, REQUEST_EDGES_S)
        self._add_state(registry)
        started_s = clock()
        self.history = History(self.sample, started_s)
        self.events = Events(started_s)
        self.error_budget = ErrorBudget(SLO_SHARE, started_s)
        self._incidents = Incidents(self.events)
        self._buffering: WeakSet[BatchMetrics | EndpointMetrics] = WeakSet()

    def _add_requests(self, registry: Registry) -> None:
        self.requests = registry.counter(
            "polyrec_requests",
            "Requests by outcome. ok: answered within the budget; late: answered after it;"
            " overloaded: 429; expired: 504; unavailable: 503; error: 500; invalid: another 4xx, or 429 for"
            " the client's own rate; cancelled: the client left.",
            *("endpoint", "outcome"),
        )
        self.seconds = registry.histogram(
            "polyrec_request_seconds",
            "Time from the last byte of a request to its answer, for every outcome; path is none if no path"
            " was chosen. Combinations that have not occurred are omitted.",
            REQUEST_EDGES_S,
            *("endpoint", "path", "outcome"),
        )
        self.phases = registry.histogram(
            "polyrec_phase_seconds",
            "Time of a phase. parse, queue and serialise are observed once per request; encode, embed and"
            " dense once per batch, so the sums are the time spent.",
            PHASE_EDGES_S,
            *("path", "phase"),
        )
        self.rows = registry.counter(
            "polyrec_rows",
            "Rows answered. outcome: ok (the rate of these is the goodput) or late.",
            *("endpoint", "path", "outcome"),
        )
        self.information = registry.counter(
            "polyrec_information",
            "Rows answered in time, weighted by the quality of their path; a path of unknown quality adds 0.",
            *("endpoint", "path"),
        )
        self.degraded = registry.counter(
            "polyrec_degraded",
            "Answers of lower quality than the plan's best path. reason: load, deadline, failure, probe.",
            *("path", "reason"),
        )

    def _add_batches(self, registry: Registry) -> None:
        self._batch_rows = registry.histogram(
            "polyrec_batch_rows", "Rows per executed batch.", ROW_EDGES, "path"
        )
        self._batch_queries = registry.counter(
            "polyrec_batch_queries", "Queries executed in batches.", "path"
        )
        self.lane_deaths = registry.counter(
            "polyrec_lane_deaths", "Times that a lane's process ended unexpectedly.", "lane"
        )
        self._lane_busy = registry.counter(
            "polyrec_lane_busy_seconds", "Time that a lane spent on batches.", "lane"
        )

    def _add_access(self, registry: Registry) -> None:
        self.access_refused = registry.counter(
            "polyrec_access_refused",
            "Requests rejected by access control. unauthorized: no token, or a wrong one (401); guessing:"
            " too many wrong tokens from an address (429); forbidden: the token lacks the right (403);"
            " limited: over the client's rate (429).",
            "reason",
        )
        self.capped_budgets = registry.counter(
            "polyrec_capped_budgets",
            "Latency budgets that were capped to the operator's limit (max_budget_ms).",
        )
        self.limited = registry.counter(
            "polyrec_limited",
            "Requests and connections that exceeded a limit of the HTTP or gRPC server (docs/protocol.md).",
            "limit",
        )

    def _add_state(self, registry: Registry) -> None:
        self.connections = registry.gauge("polyrec_connections", "Open connections.")
        self.buffered_bytes = registry.gauge(
            "polyrec_buffered_bytes", "Buffered bytes of incomplete requests."
        )
        self._ready = registry.gauge("polyrec_ready", "1 while the server is ready to answer.")
        registry.gauge(
            "polyrec_promised_share", "SLO: share of requests to answer within their latency budget."
        ).only.set(SLO_SHARE)
        self._is_ready: Callable[[], bool] = lambda: False
        self._build = registry.info(
            "polyrec_build_info",
            "The code and the bundle that are running.",
            *("version", "bundle", "bundle_version", "runtime", "python"),
        )

    @property
    def families(self) -> Sequence[AnyFamily]:
        """All metrics except those of the process."""
        return self._registry.families

    def set_ready_check(self, is_ready: Callable[[], bool]) -> None:
        """Sets the function that returns, at every scrape, whether the server is ready."""
        self._is_ready = is_ready

    def set_build_info(self, code_version: str, bundle: str, bundle_version: str, runtime: str) -> None:
        self._build.clear()
        self._build.labels(code_version, bundle, bundle_version, runtime, platform.python_version()).set(1)

    def outcomes(self, endpoint: str, path: str) -> Outcomes:
        """Returns the outcome instruments of an endpoint on a path, `none` before a path is chosen."""
        return Outcomes(
            {outcome: self.requests.labels(endpoint, outcome) for outcome in OUTCOMES},
            lambda outcome: self.seconds.labels(endpoint, path, outcome),
        )

    def endpoint_metrics(self, endpoint: str, path: str, quality: float | None) -> EndpointMetrics:
        """Returns the instruments of an endpoint on a path. quality: the path's, None if unknown."""
        answers = EndpointMetrics(
            self.outcomes(endpoint, path),
            [self.phases.labels(path, phase) for phase in ("parse", "queue", "serialise")],
            [self.rows.labels(endpoint, path, outcome) for outcome in ("late", OK)],
            {reason: self.degraded.labels(path, reason) for reason in REASONS},
            (self.information.labels(endpoint, path), max(quality or 0.0, 0.0)),
        )
        self._buffering.add(answers)
        return answers

    def path_metrics(
        self,
        path: str,
        encoder: Encoder,
        tier: str | None,
        lanes: Sequence[LaneMetrics],
        statistics: Statistics,
    ) -> BatchMetrics:
        """Returns the instruments of a path's batches.

        tier: the memory that holds all its rows; None if they are in several tiers, whose figures
        `set_tiers` adds. lanes: all lanes of the plan. statistics: records the batches too.
        """
        batches = BatchMetrics(
            [self.phases.labels(path, phase) for phase in ("encode", "embed", "dense")],
            self._batch_rows.labels(path),
            self._batch_queries.labels(path),
            None if tier is None else (self.lookups.labels(tier), self.hits.labels(tier)),
            UnknownIdCounter(encoder, self._unknown),
            lanes,
            statistics,
        )
        self._buffering.add(batches)
        return batches

    def set_tiers(self, sources: Iterable[Callable[[], Figures]], changes: Mapping[str, Changes]) -> None:
        """Sets the tiers, and the updates by path, whose figures are read at every scrape."""
        self._tiers.set_sources(sources)
        self._updates.set_changes(changes)

    def record_move(self, moves: DriftReport) -> None:
        """Records an attempt to reorder rows; called from a thread."""
        self._tiers.record_move(moves)

    def lane_metrics(self, lane: str) -> LaneMetrics:
        """Returns the instruments of one lane."""
        deaths = self.lane_deaths.labels(lane)

        def alive(up: bool) -> None:
            if up:
                self.events.add(clock(), "lane_back", f"lane {lane} is back")
            else:
                deaths.inc()
                self.events.add(clock(), "lane_died", f"lane {lane} died")

        return LaneMetrics(alive, self._lane_busy.labels(lane))

    def ticked(self, late_s: float, took_s: float) -> None:
        """Records one tick of the control loop."""
        self._loop.ticked(late_s, took_s)
        self._incidents.stalls.record(clock(), self._routed.lanes())
        self.sample_if_due()

    def set_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Sets the dispatcher whose state is read at every scrape."""
        self.generations.only.inc()
        self._routed.set_dispatcher(dispatcher)
        self.sample_if_due()

    def set_default_budget(self, default_budget_s: float) -> None:
        """Sets the budget of requests that name none, in seconds."""
        self._routed.set_default_budget(default_budget_s)

    def sample_if_due(self) -> None:
        """Keeps a sample if one is due, and updates the error budget and incidents."""
        now_s = clock()
        sample = self.history.sample_if_due(now_s)
        if sample is not None:
            counted = self._charge_error_budget(now_s, sample)
            self._incidents.record(now_s, sample, counted, self._log.counts(), self._tiers.fallbacks.value)

    def current_sample(self) -> Sample:
        """Takes a sample now without keeping it, and updates the error budget to it."""
        now_s = clock()
        sample = self.history.current_sample(now_s)
        self._charge_error_budget(now_s, sample)
        return sample

    def _charge_error_budget(self, now_s: float, sample: Sample) -> float:
        """Adds a sample's requests to the error budget; returns the number that the SLO counts."""
        missed = sum(sample["outcomes"][outcome] for outcome in SLO_MISSES)
        counted: float = missed + sample["outcomes"][OK]
        self.error_budget.record(now_s, counted, missed)
        return counted

    def set_prediction_log_counts(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Sets the function that counts the log's `requests` and `labels` by outcome; read at scrapes."""
        self._log.set_counts(counts)

    def refresh(self) -> None:
        """Updates all metrics that are read on demand."""
        self.flush()
        self._log.refresh()
        self._ready.only.set(self._is_ready())
        self._tiers.refresh()
        self._updates.refresh()
        self._routed.refresh()
        self._loop.waited_s()
        self.live.refresh(clock())

    def flush(self) -> None:
        """Counts buffered records; called before metrics or the protocol's statistics are read."""
        for buffer in list(self._buffering):
            buffer.flush()

    def sample(self) -> dict[str, Any]:
        """Returns a sample for the status page: cumulative counts, and the current queue and budget.

        rows: by path, [late, ok]. degraded: answers by reason. latency: answers by bucket of REQUEST_EDGES_S,
        the last beyond all edges. tiers: by tier, [lookups, hits]. waited_s: time that the event loop waited
        for a processor.
        """
        self.flush()
        self._tiers.refresh()
        self._updates.refresh()
        outcomes = dict.fromkeys(OUTCOMES, 0.0)
        for (_, outcome), requests in self.requests.children.items():
            outcomes[outcome] += requests.value
        rows: dict[str, list[float]] = {}
        for (_, path, outcome), counter in self.rows.children.items():
            rows.setdefault(path, [0, 0])[outcome == OK] += counter.value
        degraded = dict.fromkeys(REASONS, 0.0)
        for (_, reason), answers in self.degraded.children.items():
            degraded[reason] += answers.value
        latency = [0] * (len(REQUEST_EDGES_S) + 1)
        for (_, _, outcome), seconds in list(self.seconds.children.items()):
            if outcome in (OK, "late"):
                latency = [a + b for a, b in zip(latency, seconds.counts, strict=True)]
        tiers = {
            tier: [lookups.value, self.hits.labels(tier).value]
            for (tier,), lookups in self.lookups.children.items()
        }
        queue_rows, budget_s = self._routed.queue_rows_and_budget_s()
        return {
            "outcomes": outcomes,
            "rows": rows,
            "degraded": degraded,
            "latency": latency,
            "tiers": tiers,
            "waited_s": round(self._loop.waited_s(), 3),
            "queue_rows": queue_rows,
            "budget_s": budget_s,
        }

    def render(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        self.refresh()
        return self._registry.text().encode() + self.render_process()

    def render_process(self) -> bytes:
        """Returns the metrics of the process in Prometheus's text format."""
        return generate_latest(self._process)
