"""What the server counts, for Prometheus.

Every finished request, every phase of it and every executed batch is recorded here; `render` gives
the text that is scraped. One registry per server, so that several can live in one process. Labels
are bounded (endpoints, paths, lanes, outcomes, reasons, features, tiers), and their children are bound
once. What the router knows (rates, prices, corrections) is asked of it at every scrape.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from models.batch import Batch
from models.encoder import Encoder
from planner.routing.router import Router
from server.dispatcher import Batched
from server.statistics import Statistics

CONTENT_TYPE = CONTENT_TYPE_LATEST

# A second series per counter, which says nothing that a scraper does not know.
disable_created_metrics()  # type: ignore[no-untyped-call]

# Edges stand on latency targets, so that "the share within 10 ms" is read off, not interpolated.
REQUEST_EDGES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.06, 0.08, 0.1, 0.2, 0.5, 1.0)
PHASE_EDGES_S = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2)
ROW_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
COUNT_UNKNOWN_EVERY_BATCHES = 16


class Metrics:
    """The instruments of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Histogram(
            "polyrec_request_seconds",
            "Time from the last byte of a request to its answer. outcome: ok; late (after its deadline);"
            " invalid (4xx); overloaded (429); expired (504); unavailable (503); cancelled; error (500).",
            ("endpoint", "path", "outcome"),
            buckets=REQUEST_EDGES_S,
            registry=registry,
        )
        self._phases = Histogram(
            "polyrec_phase_seconds",
            "Time of a phase. parse, queue and serialise are observed once a request, encode, embed and dense"
            " once a batch, so that the sums are the time spent.",
            ("path", "phase"),
            buckets=PHASE_EDGES_S,
            registry=registry,
        )
        self._rows = Counter("polyrec_rows", "Rows answered.", ("endpoint", "path"), registry=registry)
        self._batch_rows = Histogram(
            "polyrec_batch_rows",
            "Rows of an executed batch.",
            ("path",),
            buckets=ROW_EDGES,
            registry=registry,
        )
        self._batch_queries = Counter(
            "polyrec_batch_queries", "Queries executed in batches.", ("path",), registry=registry
        )
        self._reduced = Counter(
            "polyrec_reduced",
            "Answers of less than the best quality that the plan has. reason: load, deadline, failure.",
            ("path", "reason"),
            registry=registry,
        )
        self._accuracy = Gauge(
            "polyrec_path_accuracy",
            "Share of held-out rows that a path predicts right, as routing takes it.",
            ("path",),
            registry=registry,
        )
        self._lane_up = Gauge(
            "polyrec_lane_up", "1 while a lane's executor is alive.", ("lane",), registry=registry
        )
        self._lane_deaths = Counter(
            "polyrec_lane_deaths", "Times that a lane's process ended unasked.", ("lane",), registry=registry
        )
        self._lane_busy = Counter(
            "polyrec_lane_busy_seconds", "Time that a lane spent on batches.", ("lane",), registry=registry
        )
        self._routed = RouterMetrics(registry)
        self._unknown = Counter(
            "polyrec_oov_lookups",
            "Look-ups of values that the vocabulary lacks.",
            ("feature",),
            registry=registry,
        )
        self._lookups = Counter(
            "polyrec_embedding_lookups", "Embedding rows looked up in a tier.", ("tier",), registry=registry
        )
        self._hits = Counter(
            "polyrec_embedding_hits", "Embedding rows found in a tier.", ("tier",), registry=registry
        )
        self._ready = Gauge("polyrec_ready", "1 while the server is ready to answer.", registry=registry)
        self._build = Info("polyrec_build", "The code and the bundle that are running.", registry=registry)
        self._flushes: list[Callable[[], None]] = []

    def ready(self, is_ready: bool) -> None:
        self._ready.set(is_ready)

    def build(self, code_version: str, bundle: str, bundle_version: str, runtime: str) -> None:
        self._build.info(
            {
                "version": code_version,
                "bundle": bundle,
                "bundle_version": bundle_version,
                "runtime": runtime,
                "python": platform.python_version(),
            }
        )

    def outcomes(self, endpoint: str, path: str) -> Outcomes:
        """How requests of one endpoint on one path end; path `none` before one is chosen."""
        return Outcomes(lambda outcome: self._requests.labels(endpoint, path, outcome))

    def endpoint(self, endpoint: str, path: str) -> EndpointMetrics:
        """The instruments of one endpoint's requests on one path."""
        outcomes = self.outcomes(endpoint, path)
        outcomes.bind("ok")
        return EndpointMetrics(
            outcomes,
            self._phases.labels(path, "parse"),
            self._phases.labels(path, "queue"),
            self._phases.labels(path, "serialise"),
            self._rows.labels(endpoint, path),
            {reason: self._reduced.labels(path, reason) for reason in ("load", "deadline", "failure")},
        )

    def path(self, path: str, accuracy: float, encoder: Encoder, tier: str) -> BatchMetrics:
        """The instruments of one path's batches."""
        self._accuracy.labels(path).set(accuracy)
        for feature in encoder.schema.categorical:
            self._unknown.labels(feature.name)
        batches = BatchMetrics(
            encoder,
            self._phases.labels(path, "encode"),
            self._phases.labels(path, "embed"),
            self._phases.labels(path, "dense"),
            self._batch_rows.labels(path),
            self._batch_queries.labels(path),
            self._lookups.labels(tier),
            self._hits.labels(tier),
            self._unknown,
        )
        self._flushes.append(batches.flush)
        return batches

    def lane(self, lane: str) -> LaneMetrics:
        """The instruments of one lane."""
        self._lane_up.labels(lane).set(1)
        return LaneMetrics(
            self._lane_up.labels(lane), self._lane_deaths.labels(lane), self._lane_busy.labels(lane)
        )

    def watch(self, router: Router, clock: Callable[[], float]) -> None:
        """`router` is asked at every scrape, in place of any before it."""
        self._routed.watch(router, clock)

    def render(self) -> bytes:
        """Everything, in Prometheus's text format."""
        for flush in self._flushes:
            flush()
        self._routed.refresh()
        return generate_latest(self.registry)


class Outcomes:
    """Time of requests by how they ended. A histogram that nothing fell into yet is not there."""

    def __init__(self, histogram: Callable[[str], Histogram]) -> None:
        self._histogram = histogram
        self._bound: dict[str, Histogram] = {}

    def bind(self, outcome: str) -> Histogram:
        histogram = self._bound[outcome] = self._histogram(outcome)
        return histogram

    def finished(self, outcome: str, seconds: float) -> None:
        (self._bound.get(outcome) or self.bind(outcome)).observe(seconds)


class EndpointMetrics:
    """Requests of one endpoint on one path."""

    def __init__(
        self,
        outcomes: Outcomes,
        parse: Histogram,
        queue: Histogram,
        serialise: Histogram,
        rows: Counter,
        reduced: dict[str, Counter],
    ) -> None:
        self.outcomes = outcomes
        self._parse = parse
        self._queue = queue
        self._serialise = serialise
        self._rows = rows
        self._reduced = reduced

    def answered(
        self, rows: int, parse_s: float, queue_s: float, serialise_s: float, reason: str | None
    ) -> None:
        self._rows.inc(rows)
        if reason is not None:
            self._reduced[reason].inc()
        self._parse.observe(parse_s)
        self._queue.observe(queue_s)
        self._serialise.observe(serialise_s)


class BatchMetrics:
    """Batches of one path.

    Unknown values are counted over some batches at once, before a scrape at the latest: counting is a
    few array operations, which cost about as much for one batch as for ten. Not over more: the request
    that has to wait for the counting should not notice.
    """

    def __init__(
        self,
        encoder: Encoder,
        encode: Histogram,
        embed: Histogram,
        dense: Histogram,
        batch_rows: Histogram,
        queries: Counter,
        lookups: Counter,
        hits: Counter,
        unknown: Counter,
    ) -> None:
        self._encoder = encoder
        self._encode = encode
        self._embed = embed
        self._dense = dense
        self._batch_rows = batch_rows
        self._queries = queries
        self._lookups = lookups
        self._hits = hits
        self._unknown = unknown
        self._pending: list[Batch] = []

    def executed(self, batched: Batched) -> None:
        batch = batched.batch
        self._encode.observe(batched.encode_s)
        self._embed.observe(batched.embed_s)
        self._dense.observe(batched.dense_s)
        self._batch_rows.observe(batch.rows)
        self._queries.inc(batched.queries)
        context, candidate = batch.context, batch.candidate
        found = (
            context.ranks.size + context.bag_values.size + candidate.ranks.size + candidate.bag_values.size
        )
        self._lookups.inc(found)
        self._hits.inc(found)
        self._pending.append(batch)
        if len(self._pending) >= COUNT_UNKNOWN_EVERY_BATCHES:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        for feature, count in self._encoder.unknown(Batch.concat(self._pending)).items():
            self._unknown.labels(feature).inc(count)
        self._pending.clear()


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """One lane: is it there, how often did it die, how long did it work."""

    up: Gauge
    deaths: Counter
    busy: Counter

    def alive(self, alive: bool) -> None:
        self.up.set(alive)
        if not alive:
            self.deaths.inc()


class Recorder:
    """Tells the dispatcher's batches and lanes to the metrics and to the protocol's statistics."""

    def __init__(
        self, lanes: Sequence[LaneMetrics], paths: Sequence[BatchMetrics], statistics: Statistics
    ) -> None:
        self._lanes = tuple(lanes)
        self._paths = tuple(paths)
        self._statistics = statistics

    def batch_executed(self, batched: Batched) -> None:
        self._paths[batched.path].executed(batched)
        self._lanes[batched.lane].busy.inc(batched.took_s)
        self._statistics.executed(batched.batch.rows, batched.took_s)

    def lane_alive(self, lane: int, alive: bool) -> None:
        self._lanes[lane].alive(alive)


class RouterMetrics:
    """What the router knows, asked at a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"polyrec_{name}", what, labels, registry=registry)

        self._queue_rows = gauge("queue_rows", "Rows waiting for a lane.")
        self._queue_queries = gauge("queue_queries", "Queries waiting for a lane.")
        self._arrival_queries = gauge(
            "arrival_queries_per_second", "Recent rate of queries, as routing sees it."
        )
        self._arrival_rows = gauge("arrival_rows_per_second", "Recent rate of rows, as routing sees it.")
        self._price = gauge(
            "device_price", "Price of a second of a device's time, in correct predictions.", "device"
        )
        self._correction = gauge(
            "lane_correction", "Measured over profiled time of a lane's batches, the median.", "lane"
        )
        self._open = gauge(
            "lane_open", "1 while the lane is given work, 0 while its breaker keeps it out.", "lane"
        )
        self._utilisation = gauge("lane_utilisation", "Recent share of time that a lane was busy.", "lane")
        self._router: Router | None = None
        self._clock: Callable[[], float] = float

    def watch(self, router: Router, clock: Callable[[], float]) -> None:
        for labelled in (self._price, self._correction, self._open, self._utilisation):
            labelled.clear()
        self._router, self._clock = router, clock

    def refresh(self) -> None:
        if self._router is None:
            return
        state = self._router.state(self._clock())
        self._queue_rows.set(state.queued_rows)
        self._queue_queries.set(state.queued_queries)
        self._arrival_queries.set(state.queries_s)
        self._arrival_rows.set(state.rows_s)
        for device, price in state.prices.items():
            self._price.labels(device).set(price)
        for lane in state.lanes:
            self._correction.labels(lane.name).set(lane.factor)
            self._open.labels(lane.name).set(lane.breaker == "closed")
            self._utilisation.labels(lane.name).set(lane.used)
