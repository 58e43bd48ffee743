from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.fleet.provisioning.capability import Profiles, build_fleet_problem, load_profiles
from polyrec.planner.fleet.provisioning.description import Fleet, FleetError, FleetModel, NodeType, load_fleet
from polyrec.planner.fleet.provisioning.explain import page
from polyrec.planner.fleet.provisioning.fleet_plan import nodes_left, plan_fleet
from polyrec.planner.plan import save_plan
from polyrec.planner.profile import Profile, save_profile
from polyrec.planner.traffic import Sizes
from tests.planner.planning import machine, path, profile, traffic

SIZES = Sizes(kind="fixed", mean=20)
DAY = (10_000.0, 40_000.0, 400_000.0, 160_000.0)


def profiles(models: tuple[str, ...] = ("ads",)) -> dict[tuple[str, str], Profile]:
    """A cheap path, and a better one that takes five times as long; `big` nodes have 8 cores, `small` 4."""
    found = {}
    for name, cores in (("small", 4), ("big", 8)):
        paths = (
            path("table@cpu", quality=0.2, fixed_s=1e-4, row_s=1e-5),
            path("hybrid@cpu", quality=0.21, fixed_s=1e-4, row_s=5e-5),
        )
        for model in models:
            found[model, name] = profile(*paths, on=machine(cores=cores))
    return found


def fleet(profiles: Profiles, nodes: tuple[NodeType, ...] = (), **changed: object) -> Fleet:
    rented = nodes or (NodeType(name="small", price_per_hour=1.0), NodeType(name="big", price_per_hour=1.9))
    models = tuple(
        FleetModel(
            name=name,
            profiles={n.name: Path("p.json") for n in rented},
            slo_ms=20,
            sizes=SIZES,
            rate=DAY,
            **changed,  # type: ignore[arg-type]
        )
        for name in dict.fromkeys(model for model, _ in profiles)
    )
    return Fleet(nodes=rented, models=models)


def test_everything_is_served_and_nodes_follow_the_load() -> None:
    plan = plan_fleet(fleet(profiles()), profiles())
    total = np.sum(list(plan.nodes_by_type.values()), axis=0)
    assert total.argmax() == 2
    assert total.argmin() == 0
    assert plan.models[0].served == pytest.approx(1.0)
    assert plan.cost == pytest.approx(sum(plan.cost_by_hour))
    predictions = sum(DAY) * 20 * 3600
    assert plan.cost_per_million == pytest.approx(plan.cost / predictions * 1e6)
    # without a worth of information the cheapest path does
    assert plan.models[0].quality == pytest.approx(0.2)


def test_nodes_rented_by_the_day_are_those_of_the_peak() -> None:
    hourly = plan_fleet(fleet(profiles()), profiles())
    nodes = (
        NodeType(name="small", price_per_hour=1.0, rented="daily"),
        NodeType(name="big", price_per_hour=1.9, rented="daily"),
    )
    daily = plan_fleet(fleet(profiles(), nodes), profiles())
    assert daily.cost > hourly.cost
    assert len(set(daily.cost_by_hour)) == 1
    for by_hour in daily.nodes_by_type.values():
        assert len(set(by_hour)) == 1
    # twice the load of every hour but the peak is less than the peak's, which these nodes serve
    (doubled,) = [w for w in daily.what_if if w.what == "2 times the rate"]
    assert doubled.served["ads"] >= (2 * (sum(DAY) - max(DAY)) + max(DAY)) / (2 * sum(DAY)) - 0.01


def test_quality_asked_over_the_day_is_bought_where_it_is_cheapest() -> None:
    cheap = plan_fleet(fleet(profiles()), profiles())
    better = plan_fleet(fleet(profiles(), quality=0.205), profiles())
    assert better.models[0].quality >= 0.205 - 1e-6
    hourly = plan_fleet(fleet(profiles(), quality=0.205, quality_over="hour"), profiles())
    assert min(hourly.models[0].quality_by_hour) >= 0.205 - 1e-6
    assert hourly.cost >= better.cost * (1 - 1e-3)
    assert better.cost > cheap.cost


def test_information_worth_more_than_its_cost_is_bought() -> None:
    assert plan_fleet(fleet(profiles(), weight=1e3), profiles()).models[0].quality == pytest.approx(0.21)


def test_two_models_share_nodes() -> None:
    both = profiles(("ads", "news"))
    alone = plan_fleet(fleet(profiles()), profiles())
    together = plan_fleet(fleet(both), both)
    assert together.cost < 2 * alone.cost + 1e-9
    assert any({name.split("/")[0] for name in group.paths} == {"ads", "news"} for group in together.groups)


def test_a_limited_type_is_worth_more_than_it_costs_and_the_dearer_one_helps() -> None:
    nodes = (
        NodeType(name="small", price_per_hour=1.0, most=2),
        NodeType(name="big", price_per_hour=9.0),
    )
    plan = plan_fleet(fleet(profiles(), nodes), profiles())
    assert max(plan.nodes_by_type["small"]) == 2
    small, big = plan.worth
    assert small.at_most > small.price
    assert big.at_most <= big.price * (1 + 1e-6)


def test_a_surge_and_a_loss_are_served_in_part() -> None:
    nodes = (NodeType(name="small", price_per_hour=1.0, spot_loss=0.5),)
    plan = plan_fleet(fleet(profiles(), nodes), profiles())
    found = {w.what: w for w in plan.what_if}
    assert found["2 times the rate"].served["ads"] < 0.7
    assert found["50% of small lost"].served["ads"] == pytest.approx(0.5, abs=0.1)
    # of one node at the quietest hour none is left
    assert found["50% of small lost"].worst_hour["ads"] == 0.0


def test_spare_is_rented_but_is_no_load_that_is_answered_or_doubled() -> None:
    given = fleet(profiles())
    plan = plan_fleet(given.model_copy(update={"spare": 1.0}), profiles())
    assert plan.cost > 1.9 * plan_fleet(given, profiles()).cost
    # the fleet costs twice as much for the same predictions
    assert plan.cost_per_million == pytest.approx(plan.cost / (sum(DAY) * 20 * 3600) * 1e6)
    assert plan.what_if[0].served["ads"] == pytest.approx(1.0)
    assert "by hour: at the rate and 100% spare" in page(plan)


def test_a_share_of_spot_nodes_is_lost_of_a_type_not_of_each_set_of_paths() -> None:
    assert nodes_left(np.array([1.0, 1.0, 1.0]), 0.3).sum() == 2
    assert nodes_left(np.array([10.0, 0.0, 20.0]), 0.3).tolist() == [7, 0, 14]
    assert nodes_left(np.array([3.0, 0.0, 2.0]), 1.0).tolist() == [0, 0, 0]
    assert nodes_left(np.zeros(2), 0.3).tolist() == [0, 0]
    random = np.random.default_rng(1)
    for _ in range(100):
        nodes, loss = random.integers(0, 9, 4).astype(float), random.random()
        left = nodes_left(nodes, loss)
        assert ((left >= 0) & (left <= nodes)).all()
        assert left.sum() == np.floor(nodes.sum() * (1 - loss) + 1e-9)


def test_scarce_nodes_are_divided_among_models_by_the_same_share() -> None:
    both = profiles(("ads", "news"))
    heavy = {key: p if key[0] == "ads" else slower(p) for key, p in both.items()}
    plan = plan_fleet(fleet(heavy), heavy)
    surge = plan.what_if[0]
    assert surge.served["ads"] < 0.9
    assert surge.served["ads"] == pytest.approx(surge.served["news"], abs=0.02)


def slower(given: Profile) -> Profile:
    """The profile with a third path's time for every row of the first."""
    paths = (path("table@cpu", quality=0.2, fixed_s=1e-4, row_s=3e-5), *given.paths[1:])
    return given.model_copy(update={"paths": paths})


def test_a_node_costs_a_query_what_the_plan_of_one_machine_does() -> None:
    given = profile(path("table@cpu", row_s=1e-5), on=machine(cores=4))
    problem = build_fleet_problem(
        fleet({("ads", "small"): given}, (NodeType(name="small", price_per_hour=1.0),)),
        {("ads", "small"): given},
    )
    alone = propose(given, Requirements(0.02, traffic(max(DAY))), [None]).problem
    np.testing.assert_allclose(problem.offers[0].runnables[0].usage[0], alone.options[0].cost_s)


def test_a_file_is_read_with_its_profiles_and_plans(tmp_path: Path) -> None:
    given = profile(path("table@cpu", row_s=1e-5), on=machine(cores=4, price=0.3))
    save_profile(given, tmp_path / "profile.json")
    save_plan(propose(given, Requirements(0.02, traffic(500.0)), [None]).plan, tmp_path / "plan.json")
    (tmp_path / "made.yaml").write_text(
        yaml.safe_dump(given.machine.model_dump(mode="json", exclude_none=True))
    )
    raw = {
        "nodes": [{"name": "a"}, {"name": "b", "machine": "made.yaml"}],
        "models": [
            {
                "name": "ads",
                "profiles": {"a": "profile.json", "b": "plan.json"},
                "slo_ms": 20,
                "sizes": {"kind": "fixed", "mean": 20},
                "rate": [100, 5000],
            }
        ],
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(raw))
    read = load_fleet(tmp_path / "fleet.yaml")
    plan = plan_fleet(read, load_profiles(read))
    assert plan.models[0].served == pytest.approx(1.0)
    assert [w.price for w in plan.worth] == [0.3, 0.3]
    shown = "\n".join(page(plan))
    assert "per million predictions" in shown
    assert "one more saves" in shown


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, "node type 'a' is described twice"),
        ({"models": []}, "models"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    model = {"name": "m", "profiles": {"a": "p"}, "slo_ms": 1, "sizes": {"mean": 1}, "rate": [1]}
    (tmp_path / "f.yaml").write_text(yaml.safe_dump({"nodes": [{"name": "a"}], "models": [model]} | changed))
    with pytest.raises(FleetError, match=said):
        load_fleet(tmp_path / "f.yaml")


def test_a_model_that_no_node_can_serve_is_reported() -> None:
    slow = {("ads", "small"): profile(path("table@cpu", fixed_s=1.0), on=machine(cores=4))}
    nodes = (NodeType(name="small", price_per_hour=1.0),)
    with pytest.raises(FleetError, match="no path on any node type meets 20 ms"):
        plan_fleet(fleet(slow, nodes), slow)
    with pytest.raises(FleetError, match=r"asks for quality 0\.3, its best path has 0\.21"):
        plan_fleet(fleet(profiles(), quality=0.3), profiles())
    with pytest.raises(FleetError, match="needs price_per_hour"):
        plan_fleet(fleet(profiles(), (NodeType(name="small"),)), profiles())
    large = path("table@cpu", tables={"t": 2 * 10**9}), path("dhe@cpu", quality=0.9, tables={"t": 10**12})
    big = {("ads", "small"): profile(*large, on=machine(cores=4))}
    with pytest.raises(FleetError, match=r"'table@cpu' needs 2 GB of 'small', which has 1 GB"):
        plan_fleet(fleet(big, nodes), big)
    # a path that fits no node is none that could have the quality
    one = {("ads", "small"): profile(path("table@cpu", quality=0.2), large[1], on=machine(cores=4))}
    with pytest.raises(FleetError, match=r"asks for quality 0\.5, its best path has 0\.2"):
        plan_fleet(fleet(one, nodes, quality=0.5), one)


def test_a_node_holds_what_the_smaller_of_two_profiles_machines_does() -> None:
    both = {
        ("ads", "small"): profile(path("table@cpu", quality=0.2, tables={"t": 9 * 10**8})),
        ("news", "small"): profile(path("table@cpu", quality=0.2), on=machine(memory=10**12)),
    }
    (offer,) = build_fleet_problem(fleet(both, (NodeType(name="small", price_per_hour=1.0),)), both).offers
    assert offer.bytes == {"cpu": 10**9}


def test_a_node_saves_nothing_in_an_hour_without_traffic() -> None:
    given = fleet(profiles(), weight=2.5)
    models = tuple(m.model_copy(update={"rate": (0.0, 100.0)}) for m in given.models)
    plan = plan_fleet(given.model_copy(update={"models": models}), profiles())
    assert [w.at_most <= w.price * (1 + 1e-6) for w in plan.worth] == [True, True]
    assert plan.proven
    shown = page(plan)
    assert shown[3].split()[-2:] == ["100%", "-"]
