from __future__ import annotations

import pytest

from polyrec.cluster.live_state import LiveState, read_state
from polyrec.planner.fleet.autoscaling import ReplicaLoad

METRICS = """\
# HELP polyrec_queue_rows Rows waiting for a lane.
# TYPE polyrec_queue_rows gauge
polyrec_queue_rows{model="a"} 100
polyrec_queue_rows{model="b"} 20
polyrec_capacity_rows_per_second{model="a"} 2000
polyrec_capacity_rows_per_second{model="b"} 400
polyrec_arrival_rows_per_second{model="a"} 600
polyrec_arrival_queries_per_second{model="a"} 30
polyrec_budget_seconds{model="a"} 0.1
polyrec_budget_seconds{model="b"} 0.05
polyrec_device_price{device="cpu"} 1.5
polyrec_device_price{device="cuda:0"} 2.5
polyrec_lane_up{lane="0"} 1
polyrec_lane_up{lane="1"} 1
polyrec_lane_up{lane="2"} 0
polyrec_lane_correction{lane="0"} 2
polyrec_lane_correction{lane="1"} 0.8
polyrec_requests_total{path="x"} 7
"""


def test_the_state_is_read_from_metrics() -> None:
    state = read_state(METRICS)
    assert state == LiveState(2400, 600, 30, 120, 0.1, 2.5, lanes=2, lane_share=0.5)
    assert state.load() == ReplicaLoad(0.25, 0.05, 2.5)
    assert state.work_s == pytest.approx(20 / 2400)
    assert state.percent() == 33
    assert read_state("") == LiveState()
    assert LiveState().load() == ReplicaLoad(0, 0, 0)
