from __future__ import annotations

from itertools import pairwise

import pytest

from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.deployment.sweep import Axis, SweepPoint, lines, parse_sweep, plan_step, steps
from polyrec.planner.devices import MachineError
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import PlanError
from tests.planner.planning import machine, path, profile, traffic

MADE = machine(gpu=10**9, price=1.0)
GOOD = path("hybrid@cpu", quality=0.81, row_s=1e-5)
FAST = path("table@cpu", quality=0.8)
ASK = Requirements(0.01, traffic(100))


def swept(*texts: str) -> tuple[list[SweepPoint], list[Axis]]:
    axes = [parse_sweep(text, machine()) for text in texts]
    return [plan_step(profile(GOOD, FAST), step, [None, None]) for step in steps(ASK, axes)], axes


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("slo=5,10", Axis("slo", (5, 10))),
        ("rate=100", Axis("rate", (100,))),
        ("cores=1, 2", Axis("cores", (1, 2))),
        ("memory.cpu=1GB,200MB", Axis("memory.cpu", (1e9, 2e8))),
        ("memory.gpu0=1MiB", Axis("memory.cuda:0", (1048576,))),
        ("memory.disk=1TB", Axis("memory.disk", (1e12,))),
        ("copies.gpu0=1,2", Axis("copies.cuda:0", (1, 2))),
    ],
)
def test_an_axis_is_read(text: str, axis: Axis) -> None:
    assert parse_sweep(text, MADE) == axis


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("color=1", "unknown key 'color'; sweep one of slo, rate, cores, memory.DEVICE, copies.DEVICE"),
        ("memory=1GB", "unknown key 'memory'"),
        ("slo", "write KEY=VALUE"),
        ("slo=", "write KEY=VALUE"),
        ("slo=5,x", "'x' is not a number"),
        ("slo=-5", "-5 is not a positive number"),
        ("rate=nan", "nan is not a positive number"),
        ("cores=1.5", "1.5 is not a positive whole number"),
        ("memory.cpu=lots", "'lots' is not a size"),
        ("memory.gpu7=1GB", "has no device 'gpu7'"),
        ("copies.cpu=2", "sweep cores instead"),
    ],
)
def test_a_bad_sweep_is_one_line(text: str, says: str) -> None:
    with pytest.raises((PlanError, MachineError)) as error:
        parse_sweep(text, MADE)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_all_combinations_are_planned_the_last_axis_fastest() -> None:
    found = steps(ASK, [Axis("slo", (5, 10)), Axis("rate", (1, 2)), Axis("memory.cpu", (7,))])
    assert [tuple(s.values.values()) for s in found] == [(5, 1, 7), (5, 2, 7), (10, 1, 7), (10, 2, 7)]
    assert (
        found[0].requirements.slo_s,
        found[0].requirements.traffic.rate,
        found[0].requirements.memory,
    ) == (0.005, 1, {"cpu": 7})


def test_a_key_is_swept_once_and_not_too_often() -> None:
    with pytest.raises(PlanError, match="'slo' is swept twice"):
        steps(ASK, [Axis("slo", (1,)), Axis("slo", (2,))])
    with pytest.raises(PlanError, match=r"441 combinations, at most 400"):
        steps(ASK, [Axis("slo", (1.0,) * 21), Axis("rate", (1.0,) * 21)])


def test_more_of_anything_never_gives_less() -> None:
    for text in ("slo=2,5,10,50", "cores=1,2,3,8", "memory.cpu=1.2MB,2.2MB,10MB"):
        points, _ = swept(text, "rate=20000")
        information = [p.information_per_s for p in points]
        assert all(a <= b * (1 + 1e-6) for a, b in pairwise(information)), text


def test_a_looser_slo_gives_no_less_where_large_batches_are_slower_per_row() -> None:
    """As where a batch of many rows no longer fits the cache."""
    seconds = (1e-4, 5e-4, 2e-2)
    bent = LatencyModel(rows=(1, 256, 4096), median_s=seconds, tail_s=seconds)
    made = profile(FAST.model_copy(update={"latency": bent}))
    asked = steps(Requirements(0.01, traffic(100_000)), [parse_sweep("slo=1,2,5,10,50", MADE)])
    points = [plan_step(made, step, [None]) for step in asked]
    rows = [p.information_per_s for p in points]
    assert all(a <= b * (1 + 1e-6) for a, b in pairwise(rows)), rows
    expected = propose(made, asked[-1].requirements, [None]).plan.expected
    assert expected is not None
    assert expected.paths[0].batch_rows == 256


def test_an_impossible_combination_is_a_point_with_its_reason() -> None:
    points, axes = swept("slo=0.01,10")
    assert points[0].shares is None
    assert points[0].reason.startswith("no path answers 20 rows")
    table = lines(points, axes)
    assert "none: no path answers" in table[1]
    assert "hybrid@cpu 100%" in table[2]


def test_prices_give_a_column_of_costs() -> None:
    axis = parse_sweep("rate=100,200", MADE)
    made = profile(FAST, on=machine(price=3.6))
    points = [plan_step(made, step, [None]) for step in steps(ASK, [axis])]
    assert [p.cost_per_million for p in points] == [pytest.approx(0.5), pytest.approx(0.25)]
    assert "a million cost" in lines(points, [axis])[0]
    assert "a million cost" not in lines(*swept("rate=100"))[0]
