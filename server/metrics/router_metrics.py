"""Metrics of the router's state, read at every scrape."""

from __future__ import annotations

from dataclasses import replace

from polyrec.planner.routing.explain import RouterSnapshot
from polyrec.planner.routing.lanes.breaker import BreakerState
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.server.dispatch.cold_rows import ColdRowFigures, ColdRows
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.metrics.instruments import Family, Gauge, Registry


class RouterMetrics:
    """Gauges of the router's state."""

    def __init__(self, registry: Registry) -> None:
        self._add_traffic(registry)
        self._add_paths(registry)
        self._add_lanes(registry)
        self._cold = ColdRowMetrics(registry)
        self._dispatcher: Dispatcher | None = None
        self._default_budget_s = 0.0

    def _add_traffic(self, registry: Registry) -> None:
        gauge = registry.gauge
        self._queue_rows = gauge("polyrec_queue_rows", "Rows waiting for a lane.")
        self._queue_queries = gauge("polyrec_queue_queries", "Queries waiting for a lane.")
        self._in_flight = gauge("polyrec_in_flight_queries", "Queries waiting or executing.")
        self._queries = gauge("polyrec_arrival_queries_per_second", "Recent arrival rate of queries.")
        self._rows = gauge(
            "polyrec_arrival_rows_per_second",
            "Recent arrival rate of rows, except in requests whose budgets no path could meet at any load.",
        )
        self._capacity = gauge(
            "polyrec_capacity_rows_per_second",
            "Rows per second that all lanes in service can execute on their fastest paths.",
        )
        self._budget = gauge("polyrec_budget_seconds", "Typical latency budget of recent queries.")
        self._default_budget = gauge(
            "polyrec_default_budget_seconds", "Latency budget of requests without their own."
        )
        self._policy = registry.info("polyrec_policy_info", "The routing policy in force.", "policy")

    def _add_paths(self, registry: Registry) -> None:
        gauge = registry.gauge
        self._quality = gauge(
            "polyrec_path_quality",
            "Quality of a path on test rows, in the plan's metric (by default information gain, 1 - NE).",
            "path",
        )
        self._accuracy = gauge(
            "polyrec_path_accuracy",
            "Share of test rows that a path predicts correctly at 0.5, if known.",
            "path",
        )
        self._value = gauge(
            "polyrec_path_value",
            "Value of a row answered by a path: the quality of the best path that it is not shown worse than,"
            " times the operator's weight.",
            "path",
        )
        self._predicted = gauge(
            "polyrec_path_predicted_seconds",
            "Predicted median time of a batch of that many rows, corrected by measurements.",
            *("path", "rows"),
        )
        self._price = gauge(
            "polyrec_device_price",
            "Price of a second of a device's time, in information; 0 under a policy without prices.",
            "device",
        )

    def _add_lanes(self, registry: Registry) -> None:
        gauge = registry.gauge
        self._lane = registry.info(
            "polyrec_lane_info", "A lane, its device and its kind.", *("lane", "device", "kind")
        )
        self._up = gauge("polyrec_lane_up", "1 while a lane's executor is alive.", "lane")
        self._breaker = gauge(
            "polyrec_lane_breaker",
            "1 for the state of a lane's breaker: closed (gets work), open (gets none), probing.",
            *("lane", "state"),
        )
        self._correction = gauge(
            "polyrec_lane_correction",
            "Median ratio of measured to profiled time of a lane's batches.",
            "lane",
        )
        self._used = gauge("polyrec_lane_utilisation", "Recent share of time that a lane was busy.", "lane")
        self._allotted = gauge(
            "polyrec_allotted_lanes",
            "Lane seconds per second that are allotted to the model on shared lanes, by value; 0 if no other"
            " model shares them.",
        )
        self._guaranteed = gauge(
            "polyrec_guaranteed_share",
            "Share of the lanes' time that is guaranteed to the model; 1 for a single model.",
        )
        self._held = gauge("polyrec_held_queries", "Queries whose missing rows are being read.")

    def set_default_budget(self, default_budget_s: float) -> None:
        """Sets the budget of requests that name none, in seconds."""
        self._default_budget.only.set(default_budget_s)
        self._default_budget_s = default_budget_s

    def set_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Sets the dispatcher whose state is read at every scrape, and the figures that its plan fixes."""
        per_plan: tuple[Family[Gauge], ...] = (
            *(self._quality, self._accuracy, self._value, self._predicted, self._price),
            *(self._lane, self._up, self._breaker, self._correction, self._used),
        )
        for labeled in per_plan:
            labeled.clear()
        for path in dispatcher.router.state.path_specs:
            self._quality.labels(path.name).set(path.quality)
            if path.accuracy is not None:
                self._accuracy.labels(path.name).set(path.accuracy)
        for lane in dispatcher.router.state.lane_specs:
            self._lane.labels(lane.name, lane.device, lane.kind).set(1)
        self._dispatcher = dispatcher
        self._cold.set_cold_rows(dispatcher.cold_rows)

    def queue_rows_and_budget_s(self) -> tuple[float, float]:
        """Returns the number of waiting rows, and the typical budget in seconds (at first the default)."""
        if self._dispatcher is None:
            return 0.0, 0.0
        state = self._dispatcher.router.state
        observed = state.observed
        return state.queue.rows, observed.budget_s if observed.has_queries else self._default_budget_s

    def lanes(self) -> list[tuple[str, LaneState]]:
        """The lanes in service and their states, by name."""
        if self._dispatcher is None:
            return []
        return [(lane.name, lane) for lane in self._dispatcher.router.state.lanes]

    def refresh(self) -> None:
        if self._dispatcher is None:
            return
        snapshot: RouterSnapshot = self._dispatcher.router.snapshot()
        self._queue_rows.only.set(snapshot.queued_rows)
        self._queue_queries.only.set(snapshot.queued_queries)
        self._in_flight.only.set(self._dispatcher.waiting)
        self._held.only.set(len(self._dispatcher.router.state.queue.held))
        self._cold.refresh()
        self._queries.only.set(snapshot.queries_s)
        self._rows.only.set(snapshot.demand_rows_s)
        self._capacity.only.set(snapshot.total_rate)
        self._budget.only.set(self.queue_rows_and_budget_s()[1])
        sharing = self._dispatcher.sharing
        self._allotted.only.set(0.0 if sharing is None else sharing.allotted)
        self._guaranteed.only.set(1.0 if sharing is None else sharing.guaranteed)
        self._policy.clear()
        self._policy.labels(snapshot.policy).set(1)
        for path in snapshot.paths:
            self._value.labels(path.name).set(path.value)
            for rows, seconds in path.latency_s.items():
                self._predicted.labels(path.name, rows).set(seconds)
        for lane in snapshot.lanes:
            self._price.labels(lane.device).set(snapshot.prices.get(lane.device, 0.0))
            self._up.labels(lane.name).set(lane.alive)
            for breaker in BreakerState:
                self._breaker.labels(lane.name, breaker.value).set(lane.breaker == breaker.value)
            self._correction.labels(lane.name).set(lane.factor)
            self._used.labels(lane.name).set(lane.used)


class ColdRowMetrics:
    """Counters of hot and cold queries, updated at every scrape from the tiers' figures."""

    def __init__(self, registry: Registry) -> None:
        self._queries = registry.counter(
            "polyrec_embedding_queries",
            "Queries on paths with rows on disk or in a remote store. rows: hot (all in memory) or cold.",
            "rows",
        )
        self._misses = registry.counter(
            "polyrec_embedding_misses",
            "Disk pages and remote rows that queries needed and that were not in memory when they arrived.",
            "tier",
        )
        self._waiting = registry.counter(
            "polyrec_embedding_waiting_seconds", "Time that cold queries waited for their missing rows."
        )
        self._watched: ColdRows | None = None
        self._last = ColdRowFigures()

    def set_cold_rows(self, cold_rows: ColdRows | None) -> None:
        self.refresh()
        self._watched, self._last = cold_rows, ColdRowFigures()

    def refresh(self) -> None:
        if self._watched is None:
            return
        last, now = self._last, replace(self._watched.figures)
        self._last = now
        self._queries.labels("hot").inc(now.hot - last.hot)
        self._queries.labels("cold").inc(now.cold - last.cold)
        self._misses.labels("disk").inc(now.pages - last.pages)
        self._misses.labels("remote").inc(now.remote - last.remote)
        self._waiting.only.inc(now.waited_s - last.waited_s)
