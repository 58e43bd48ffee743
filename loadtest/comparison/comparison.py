"""Compares routing policies on a live server: capacity, a ladder of loads and a step of load, in one run.

Given a server, a source of requests and the conditions, `PolicyComparison` collects a `Trial` for each
policy, with the figures of every run. Policies take turns (A B C A B C) with the same requests at the same
times, so that a noisy neighbor affects all of them alike. A run in which the driver itself was late is
repeated, and discarded if it is late again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import sleep

import numpy as np

from polyrec.loadtest.comparison.calibration import calibrate
from polyrec.loadtest.comparison.capacity_search import CapacitySearch
from polyrec.loadtest.comparison.load_step import AROUND_S, Step, step_of
from polyrec.loadtest.comparison.policy_server import PolicyServer
from polyrec.loadtest.comparison.simulated import completed, simulated
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import Load, load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import get_json, path_qualities, request_buckets
from polyrec.loadtest.results.figures import Figures, figures
from polyrec.loadtest.results.outcome import DriverTooSlow, Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Bodies, Source
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Plan
from polyrec.planner.simulation.costs import Costs
from polyrec.planner.simulation.simulator import Slowdown, no_slowdown
from polyrec.planner.traffic import Arrivals, Sizes

ATTEMPTS = 3
MAX_DISCARDED = 4
RECOVERY_S = 10.0
SETTLING_S = 4.0
"""Pause between the highest load and the lowest: the router's backoff after losses ends within it."""
LADDER_SEED = 1000
MEAN_SAMPLE = 4000
HIGHEST_RATE = 20_000.0
"""Requests/s beyond which no capacity is searched."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of every run of a comparison.

    slo_s: latency limit, from the intended departure to the end of the answer.
    margin_s: part of slo_s that the client reserves for the network; the rest is sent as the budget.
    share: share of requests that must be answered in time.
    seconds: measured duration of a run. warmup_s: unmeasured time before it.
    sizes: None for the sizes of the data.
    max_lag_s: accepted 99th percentile of the driver's own lag.
    """

    slo_s: float
    margin_s: float = 0.0005
    share: float = 0.99
    seconds: float = 4.0
    warmup_s: float = 1.0
    sizes: Sizes | None = None
    repeats: int = 1
    max_lag_s: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.margin_s < self.slo_s:
            raise LoadError(
                f"a margin of {1e3 * self.margin_s:g} ms leaves the server nothing of {1e3 * self.slo_s:g} ms"
            )


@dataclass(slots=True)
class Trial:
    """One policy's figures.

    tried: every run of its search. capacity: the highest rate that met the SLO.
    held: the runs of the search at rates up to that; one beyond may have met the SLO by luck.
    ladder: rate -> its runs.
    served: rate -> for each run, median and 99th percentile in seconds of all requests, from the server's own
    histogram, which starts after a request is read.
    simulated: rate -> the same figures on virtual lanes.
    spans: rate and number of the run -> its first and last moment, by perf_counter.
    step, stepped: figures and outcome of the step of load.
    """

    tried: list[Figures] = field(default_factory=list)
    capacity: float | None = None
    held: list[Figures] = field(default_factory=list)
    ladder: dict[float, list[Figures]] = field(default_factory=dict)
    served: dict[float, list[tuple[float, float]]] = field(default_factory=dict)
    simulated: dict[float, Figures] = field(default_factory=dict)
    spans: dict[tuple[float, int], tuple[float, float]] = field(default_factory=dict)
    step: Step | None = None
    stepped: Outcome | None = None

    def at(self, rate: float) -> Figures | None:
        """Returns the median run, by goodput, at a rate of the ladder."""
        runs = sorted(self.ladder.get(rate, ()), key=lambda f: f.goodput)
        return runs[len(runs) // 2] if runs else None


Progress = Callable[[str], object]


class PolicyComparison:
    """Compares policies of one server under the same conditions.

    quality, accuracy: by path, from the server. costs: costs of serving beyond the profile, once `calibrate`
    has measured them.
    """

    def __init__(
        self,
        server: PolicyServer,
        source: Source,
        conditions: Conditions,
        progress: Progress,
    ) -> None:
        self.server = server
        self.conditions = conditions
        self.quality, self.accuracy = path_qualities(server.url)
        self.trials = {policy: Trial() for policy in server.policies}
        self.discarded_runs = 0
        self.costs: Costs | None = None
        self._source = source
        self._progress = progress

    def find_capacities(self, first: float) -> float:
        """Finds each policy's highest rate that meets the SLO; returns the highest of all.

        Raises LoadError if no policy meets it at any rate.
        """
        searches = {policy: CapacitySearch(first, highest=HIGHEST_RATE) for policy in self.trials}
        discarded = dict.fromkeys(self.trials, 0)
        while turn := {p: rate for p, s in searches.items() if (rate := s.rate) is not None}:
            for policy, rate in turn.items():
                search = searches[policy]
                seconds = self.conditions.seconds / (2 if search.is_growing else 1)
                outcome = self._run_at(policy, rate, seconds, seed=len(search.verdicts))
                if outcome is None:
                    discarded[policy] += 1
                    if discarded[policy] >= MAX_DISCARDED:
                        search.max_verdicts = len(search.verdicts)
                    continue
                seen = figures(outcome, self.quality, self.accuracy)
                search.record(rate, seen.meets_slo(self.conditions.slo_s, self.conditions.share))
                self.trials[policy].tried.append(seen)
        for policy, search in searches.items():
            trial = self.trials[policy]
            trial.capacity = capacity = search.met
            runs = zip(search.verdicts, trial.tried, strict=True)
            trial.held = [seen for (rate, _), seen in runs if capacity is not None and rate <= capacity]
        found = [t.capacity for t in self.trials.values() if t.capacity is not None]
        if not any(trial.tried for trial in self.trials.values()):
            raise LoadError("the load driver was late in every run; the machine is busy (see --first)")
        if not found:
            raise LoadError(
                f"no policy meets {1e3 * self.conditions.slo_s:g} ms at any rate that was tried; "
                "raise --slo-ms, or plan faster paths"
            )
        return max(found)

    def calibrate(self, plan: Plan) -> None:
        """Measures the costs of serving that `simulate` adds to the profile. Takes several seconds per
        path.
        """
        rows, _ = self._requests(MEAN_SAMPLE, LADDER_SEED)
        mean = round(float(rows.mean()))
        self.costs = calibrate(plan, self.server, self._source, mean, self._progress)

    def run_ladder(
        self,
        rates: Sequence[float] | Mapping[str, Sequence[float]],
        measured: Callable[[], object] = lambda: None,
    ) -> None:
        """Runs every policy at every rate (or at its own rates), as often as the conditions specify.

        measured: called whenever all policies have run at a rate.
        """
        by_policy = rates if isinstance(rates, Mapping) else dict.fromkeys(self.trials, rates)
        for repeat in range(self.conditions.repeats):
            if repeat:
                sleep(SETTLING_S)
            for i in range(max(map(len, by_policy.values()))):
                for policy, trial in self.trials.items():
                    if i < len(by_policy[policy]):
                        self._run_rung(policy, trial, by_policy[policy][i], repeat)
                measured()

    def _run_rung(self, policy: str, trial: Trial, rate: float, repeat: int) -> None:
        before = request_buckets(self.server.url)
        outcome = self._run_at(policy, rate, self.conditions.seconds, LADDER_SEED + repeat)
        if outcome is not None:
            since = request_buckets(self.server.url) - before
            trial.ladder.setdefault(rate, []).append(figures(outcome, self.quality, self.accuracy))
            trial.spans[rate, repeat] = outcome.started_s, outcome.started_s + outcome.end_s
            trial.served.setdefault(rate, []).append((since.quantile(0.5), since.quantile(0.99)))

    def simulate(self, plan: Plan) -> None:
        """Simulates the ladder with the same arrivals and sizes. Raises PlanError."""
        whole = self.completed(plan)
        for policy, trial in self.trials.items():
            for rate in trial.ladder:
                self._progress(f"simulated: {policy} at {rate:.0f}/s")
                trial.simulated[rate] = self.simulate_run(whole, policy, rate)

    def completed(self, plan: Plan) -> Plan:
        """Returns the plan, completed with latencies and qualities from the server."""
        return completed(plan, get_json(self.server.url, "/v1/paths")["paths"])

    def simulate_run(
        self,
        whole: Plan,
        policy: str,
        rate: float,
        repeat: int = 0,
        costs: Costs | None = None,
        slowdown: Slowdown = no_slowdown,
    ) -> Figures:
        """Simulates one run of the ladder. Raises PlanError.

        whole: the completed plan. costs: None: as calibrated. slowdown: slowdown of the server's core.
        """
        c = self.conditions
        seconds = c.warmup_s + c.seconds
        due = self._due(rate, seconds, LADDER_SEED + repeat)
        rows, _ = self._requests(due.size, LADDER_SEED + repeat)
        sent_budget_s = c.slo_s - c.margin_s
        outcome = simulated(
            whole, policy, due, rows, seconds, c.slo_s, sent_budget_s, c.seed, costs or self.costs, slowdown
        )
        return figures(outcome.since(c.warmup_s), self.quality, self.accuracy)

    def step(self, base: float, factor: float = 5.0) -> None:
        """Runs every policy through a step from `base` requests/s to `factor` times that, and back."""
        up = self.conditions.warmup_s + AROUND_S
        down = up + 2 * AROUND_S
        end = down + RECOVERY_S
        shape = Arrivals(kind="step", factor=factor, start_s=up, burst_s=down - up)
        due = arrival_times(shape, base, end, np.random.default_rng(self.conditions.seed))
        for policy, trial in self.trials.items():
            self._progress(f"{policy}: a step from {base:.0f}/s to {base * factor:.0f}/s and back")
            outcome = self.run_schedule(policy, due, end, self.conditions.seed)
            if outcome is not None:
                trial.stepped = outcome
                trial.step = step_of(outcome, self.quality, up, down, base, factor)

    def _run_at(self, policy: str, rate: float, seconds: float, seed: int) -> Outcome | None:
        """Runs at a rate; returns the outcome without its warm-up, or None if it was discarded."""
        self._progress(f"{policy} at {rate:.0f}/s")
        c = self.conditions
        due = self._due(rate, c.warmup_s + seconds, seed)
        outcome = self.run_schedule(policy, due, c.warmup_s + seconds, seed)
        return None if outcome is None else outcome.since(c.warmup_s)

    def _due(self, rate: float, seconds: float, seed: int) -> F64:
        random = np.random.default_rng((self.conditions.seed, seed, round(rate)))
        return arrival_times(Arrivals(), rate, seconds, random)

    def _requests(self, n: int, seed: int) -> tuple[I64, Bodies]:
        sizes = self.conditions.sizes
        if sizes is None:
            return self._source.shuffled(n, seed)
        random = np.random.default_rng((self.conditions.seed, seed))
        return self._source.sampled(sizes.sample(n, random), seed)

    def run_schedule(self, policy: str, due_s: F64, seconds: float, seed: int) -> Outcome | None:
        """Sends requests at given times, as `run_load` does."""
        return self.run_load(policy, self.prepared(due_s, seconds, seed))

    def prepared(self, due_s: F64, seconds: float, seed: int) -> Load:
        """Builds requests at given times, to be sent in several runs.

        due_s: float64 [requests], ascending, below `seconds`. seed: for the requests' rows.
        """
        c = self.conditions
        rows, body = self._requests(due_s.size, seed)
        return load_of(
            self._target,
            due_s,
            seconds,
            body,
            rows=rows,
            budget_s=c.slo_s,
            sent_budget_s=c.slo_s - c.margin_s,
            prepare=True,
        )

    def run_load(self, policy: str, load: Load) -> Outcome | None:
        """Sends a load, including the warm-up; returns None if the driver was late in every attempt."""
        self.server.set_policy(policy)
        for _ in range(ATTEMPTS):
            outcome = run(self._target, load, Limits())
            try:
                outcome.since(self.conditions.warmup_s).require_punctual(self.conditions.max_lag_s)
                return outcome
            except DriverTooSlow as e:
                self.discarded_runs += 1
                self._progress(f"discarded: {e}")
        return None

    @property
    def _target(self) -> Target:
        return Target(self.server.url + RANK, {"Content-Type": "application/json"})
