from __future__ import annotations

from types import SimpleNamespace

from polyrec.cluster.scaling import BacklogPolicy, replica_loads
from polyrec.planner.fleet.autoscaling import ReplicaLoad

METRICS = {"demand": {"r1": 0.9, "r2": 0.9}, "backlog_s": {"r1": 0.0, "r2": 1.0}, "price": {"r1": 0.0}}


def test_only_replicas_that_report_all_count() -> None:
    assert replica_loads(METRICS) == [ReplicaLoad(0.9, 0.0, 0.0)]
    assert replica_loads(None) == []


def test_the_policy_keeps_its_state_between_calls() -> None:
    policy = BacklogPolicy(least=1, most=4, target_demand=0.6)

    def asked(demand: float, now_s: float, state: dict[str, object]) -> tuple[int, dict[str, object]]:
        metrics = {name: {"r1": 0.0, "r2": 0.0} for name in METRICS} | {
            "demand": {"r1": demand, "r2": demand}
        }
        context = SimpleNamespace(
            current_time=now_s, policy_state=state, aggregated_metrics=metrics, target_num_replicas=2
        )
        return policy(context)  # type: ignore[arg-type]

    assert asked(0.9, 1.0, {})[0] == 3
    replicas, state = asked(0.1, 1.0, {})
    assert replicas == 2
    assert asked(0.1, 200.0, state)[0] == 1
