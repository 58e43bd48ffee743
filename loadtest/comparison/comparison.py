"""Policies against one another on a live server: capacity, a ladder of loads, a step, in one run.

Subjects, a source of requests and the conditions go in; what each policy did comes out, with every figure of
every run. Policies take turns (A B C A B C), with the same requests at the same times, so that a noisy
neighbor hits all of them and none by chance. A run in which the driver itself was late is repeated, and left
out if it is late again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import sleep

import numpy as np

from polyrec.loadtest.comparison.calibration import calibrate
from polyrec.loadtest.comparison.capacity_search import Search
from polyrec.loadtest.comparison.load_step import AROUND_S, Step, step_of
from polyrec.loadtest.comparison.pacer import Pacer
from polyrec.loadtest.comparison.servers import Subjects
from polyrec.loadtest.comparison.simulated import completed, simulated
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.loadtest.drivers.server_pages import accuracies, ask, request_buckets
from polyrec.loadtest.results.figures import Figures, figures
from polyrec.loadtest.results.outcome import CouldNotKeepUp, Outcome
from polyrec.loadtest.traffic.request_bodies import RANK
from polyrec.loadtest.traffic.source import Bodies, Source
from polyrec.models.schema.batch import F64, I64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.plan import Plan
from polyrec.planner.simulation.costs import Costs
from polyrec.planner.simulation.pace import EVEN, Pace
from polyrec.planner.traffic import Arrivals, Sizes

ATTEMPTS = 3
MOST_LEFT_OUT = 4
RECOVERY_S = 10.0
FORGETTING_S = 4.0
"""Between the highest load and the lowest: by then a router that has lost queries dares as much as before."""
LADDER_SEED = 1000
MEAN_OF = 4000


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for every run of a contest.

    slo_s: the promise, from the intended departure to the end of the answer. margin_s: what the client keeps
    of it for the way there and back; the server is told the rest. share: of requests that must be answered in
    time.
    seconds: of a run; warmup_s: sent before it, and left out. sizes: None takes requests as the data
    have them. max_lag_s: 99th percentile of the driver's own lag that is accepted.
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
    """One policy's figures. tried: every run of its search; capacity: the highest rate that it kept.

    ladder: rate -> its runs. served: rate -> of each of them, median and 99th percentile in seconds of all
    requests by the server's own histogram, which begins when it has read a request. simulated: rate -> the
    same on virtual lanes.
    paces: rate, number of the run -> of the server's core in it.
    step, stepped: through a step of load, and what that was made of.
    """

    tried: list[Figures] = field(default_factory=list)
    capacity: float | None = None
    ladder: dict[float, list[Figures]] = field(default_factory=dict)
    served: dict[float, list[tuple[float, float]]] = field(default_factory=dict)
    simulated: dict[float, Figures] = field(default_factory=dict)
    paces: dict[tuple[float, int], Pace] = field(default_factory=dict)
    step: Step | None = None
    stepped: Outcome | None = None

    def at(self, rate: float) -> Figures | None:
        """The median run, by goodput, at a rate of the ladder."""
        runs = sorted(self.ladder.get(rate, ()), key=lambda f: f.goodput)
        return runs[len(runs) // 2] if runs else None


Progress = Callable[[str], object]


class Contest:
    """Subjects under the same conditions. accuracy: path -> share of rows right, as the servers say.

    costs: what serving takes beside the profile, once `calibrate` has measured it.
    """

    def __init__(
        self,
        subjects: Subjects,
        source: Source,
        conditions: Conditions,
        progress: Progress = lambda _: None,
        pacer: Pacer | None = None,
    ) -> None:
        """pacer: of the server's core; with it, simulated runs have the pace of the live ones."""
        self.subjects = subjects
        self.conditions = conditions
        self.accuracy = accuracies(subjects.url)
        self.trials = {policy: Trial() for policy in subjects.policies}
        self.refused_runs = 0
        self.costs: Costs | None = None
        self._source = source
        self._progress = progress
        self._pacer = pacer

    def find_capacities(self, first: float, highest: float = 20_000.0) -> float:
        """Each policy's highest rate that keeps the promise; gives the highest of all.

        Raises LoadError if no policy keeps it at any rate.
        """
        searches = {policy: Search(first, highest=highest) for policy in self.trials}
        left_out = dict.fromkeys(self.trials, 0)
        while turn := {p: rate for p, s in searches.items() if (rate := s.rate) is not None}:
            for policy, rate in turn.items():
                search = searches[policy]
                seconds = self.conditions.seconds / (2 if search.growing else 1)
                outcome = self._at(policy, rate, seconds, seed=len(search.verdicts))
                if outcome is None:
                    left_out[policy] += 1
                    if left_out[policy] >= MOST_LEFT_OUT:
                        search.most = len(search.verdicts)
                    continue
                seen = figures(outcome, self.accuracy)
                search.tell(rate, seen.keeps(self.conditions.slo_s, self.conditions.share))
                self.trials[policy].tried.append(seen)
        for policy, search in searches.items():
            self.trials[policy].capacity = search.kept
        kept = [t.capacity for t in self.trials.values() if t.capacity is not None]
        if not any(trial.tried for trial in self.trials.values()):
            raise LoadError("the load driver was late in every run; the machine is busy (see --ahead)")
        if not kept:
            raise LoadError(
                f"no policy keeps {1e3 * self.conditions.slo_s:g} ms at any rate that was tried; "
                "raise --slo-ms, or plan faster paths"
            )
        return max(kept)

    def calibrate(self, plan: Plan) -> None:
        """Measures, on the server, what `simulate` adds to the profile. Some seconds a path."""
        rows, _ = self._requests(MEAN_OF, LADDER_SEED)
        mean = round(float(rows.mean()))
        self.costs = calibrate(plan, self.subjects, self._source, mean, self._progress, self._pacer)

    def climb(self, rates: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
        """Every policy at every rate, or at those of its own, the conditions' number of times."""
        own = rates if isinstance(rates, Mapping) else dict.fromkeys(self.trials, rates)
        for repeat in range(self.conditions.repeats):
            if repeat:
                sleep(FORGETTING_S)
            for i in range(max(map(len, own.values()))):
                for policy, trial in self.trials.items():
                    if i < len(own[policy]):
                        self._climb(policy, trial, own[policy][i], repeat)

    def _climb(self, policy: str, trial: Trial, rate: float, repeat: int) -> None:
        before = request_buckets(self.subjects.url)
        outcome = self._at(policy, rate, self.conditions.seconds, LADDER_SEED + repeat)
        if outcome is not None:
            since = request_buckets(self.subjects.url) - before
            trial.ladder.setdefault(rate, []).append(figures(outcome, self.accuracy))
            if self._pacer is not None and self.costs is not None and self.costs.unit_s is not None:
                begun_s = outcome.started_s
                trial.paces[rate, repeat] = self._pacer.pace(
                    begun_s, begun_s + outcome.end_s, self.costs.unit_s
                )
            trial.served.setdefault(rate, []).append((since.quantile(0.5), since.quantile(0.99)))

    def simulate(self, plan: Plan) -> None:
        """The ladder again, with the same arrivals and sizes, on virtual lanes. Raises PlanError."""
        whole = self.completed(plan)
        for policy, trial in self.trials.items():
            for rate in trial.ladder:
                self._progress(f"simulated: {policy} at {rate:.0f}/s")
                trial.simulated[rate] = self.foresee(whole, policy, rate)

    def completed(self, plan: Plan) -> Plan:
        """With the latencies and accuracies that the server goes by, where the plan does not say."""
        return completed(plan, ask(self.subjects.url, "/v1/paths")["paths"])

    def foresee(
        self,
        whole: Plan,
        policy: str,
        rate: float,
        repeat: int = 0,
        costs: Costs | None = None,
        pace: Pace | None = None,
    ) -> Figures:
        """One run of the ladder on virtual lanes.

        whole: the plan, completed. costs: None: as calibrated. pace: None: that of the live run, if there has
        been one. Raises PlanError.
        """
        c = self.conditions
        seconds = c.warmup_s + c.seconds
        due = self._due(rate, seconds, LADDER_SEED + repeat)
        rows, _ = self._requests(due.size, LADDER_SEED + repeat)
        told_s = c.slo_s - c.margin_s
        pace = pace or self.trials[policy].paces.get((rate, repeat), EVEN)
        outcome = simulated(
            whole, policy, due, rows, seconds, c.slo_s, told_s, c.seed, costs or self.costs, pace
        )
        return figures(outcome.since(c.warmup_s), self.accuracy)

    def step(self, base: float, factor: float = 5.0) -> None:
        """Every policy through a step of `factor` times `base` and back."""
        up = self.conditions.warmup_s + AROUND_S
        down = up + 2 * AROUND_S
        end = down + RECOVERY_S
        shape = Arrivals(kind="step", factor=factor, start_s=up, burst_s=down - up)
        due = arrival_times(shape, base, end, np.random.default_rng(self.conditions.seed))
        for policy, trial in self.trials.items():
            self._progress(f"{policy}: a step from {base:.0f}/s to {base * factor:.0f}/s and back")
            outcome = self._run(policy, due, end, self.conditions.seed)
            if outcome is not None:
                trial.stepped = outcome
                trial.step = step_of(outcome, self.accuracy, up, down, base, factor)

    def _at(self, policy: str, rate: float, seconds: float, seed: int) -> Outcome | None:
        """Without its warm-up; None: left out."""
        self._progress(f"{policy} at {rate:.0f}/s")
        c = self.conditions
        due = self._due(rate, c.warmup_s + seconds, seed)
        outcome = self._run(policy, due, c.warmup_s + seconds, seed)
        return None if outcome is None else outcome.since(c.warmup_s)

    def _due(self, rate: float, seconds: float, seed: int) -> F64:
        random = np.random.default_rng((self.conditions.seed, seed, round(rate)))
        return arrival_times(Arrivals(), rate, seconds, random)

    def _requests(self, n: int, seed: int) -> tuple[I64, Bodies]:
        sizes = self.conditions.sizes
        if sizes is None:
            return self._source.own(n, seed)
        random = np.random.default_rng((self.conditions.seed, seed))
        return self._source.drawn(sizes.sample(n, random), seed)

    def _run(self, policy: str, due_s: F64, seconds: float, seed: int) -> Outcome | None:
        """None if the driver was late however often it was tried."""
        c = self.conditions
        rows, body = self._requests(due_s.size, seed)
        self.subjects.follow(policy)
        target = Target(self.subjects.url + RANK, {"Content-Type": "application/json"})
        load = load_of(
            target,
            due_s,
            seconds,
            body,
            rows=rows,
            budget_s=c.slo_s,
            told_s=c.slo_s - c.margin_s,
            prepare=True,
        )
        for _ in range(ATTEMPTS):
            outcome = run(target, load, Limits())
            try:
                outcome.since(c.warmup_s).require_punctual(c.max_lag_s)
                return outcome
            except CouldNotKeepUp as e:
                self.refused_runs += 1
                self._progress(f"left out: {e}")
        return None
