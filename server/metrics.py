"""What the server counts, for Prometheus.

Every finished request, every phase of it and every executed batch is recorded here; `render` gives
the text that is scraped. One registry per server, so that several can live in one process. Labels
are bounded (endpoints, paths, outcomes, features, tiers), and their children are bound once.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

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
from server.lane import Executed

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
        self._queue_rows = Gauge(
            "polyrec_queue_rows", "Rows waiting at a lane.", ("path",), registry=registry
        )
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
        )

    def lane(self, path: str, encoder: Encoder, tier: str) -> LaneMetrics:
        """The instruments of one lane's batches."""
        for feature in encoder.schema.categorical:
            self._unknown.labels(feature.name)
        lane = LaneMetrics(
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
        self._flushes.append(lane.flush)
        return lane

    def watch_queue(self, path: str, queued_rows: Callable[[], int]) -> None:
        """`queued_rows` is asked at every scrape."""
        self._queue_rows.labels(path).set_function(queued_rows)

    def render(self) -> bytes:
        """Everything, in Prometheus's text format."""
        for flush in self._flushes:
            flush()
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
        self, outcomes: Outcomes, parse: Histogram, queue: Histogram, serialise: Histogram, rows: Counter
    ) -> None:
        self.outcomes = outcomes
        self._parse = parse
        self._queue = queue
        self._serialise = serialise
        self._rows = rows

    def answered(self, rows: int, parse_s: float, queue_s: float, serialise_s: float) -> None:
        self._rows.inc(rows)
        self._parse.observe(parse_s)
        self._queue.observe(queue_s)
        self._serialise.observe(serialise_s)


class LaneMetrics:
    """Batches of one lane.

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

    def batch_executed(self, executed: Executed, queries: int) -> None:
        batch = executed.batch
        self._encode.observe(executed.encode_s)
        self._embed.observe(executed.embed_s)
        self._dense.observe(executed.dense_s)
        self._batch_rows.observe(batch.rows)
        self._queries.inc(queries)
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
