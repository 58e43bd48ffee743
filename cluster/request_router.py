"""A request router for Ray Serve that uses predicted completion (planner/fleet/replica_choice.py).

Replicas' reports come through Serve's controller, so they are older than a balancer's own request counts.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from polyrec.planner.fleet.replica_choice import ReplicaChoice


class PredictedCompletion(RequestRouter):
    """Sends a request to whichever of two random replicas is predicted to answer first."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Starts without replicas."""
        self._choice: ReplicaChoice[str] = ReplicaChoice(Random())
        self._known: dict[str, float] = {}
        self._work_s: dict[str, float] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the chosen replica, then all others, which Serve tries if the first is full."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if not by_name:
            return []
        now_s = time.time()
        self._update_reports(by_name, now_s)
        first = self._choice.pick(now_s)
        rest = [replica for name, replica in by_name.items() if name != first]
        return [[by_name[first]], *([rest] if rest else [])]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Adds a sent request's work to its replica's backlog."""
        name = replica_id.unique_id
        self._choice.record_sent(name, time.time(), self._work_s.get(name, 0.0))

    def _update_reports(self, by_name: dict[str, RunningReplica], now_s: float) -> None:
        for name in self._known.keys() - by_name.keys():
            del self._known[name]
            self._choice.remove(name)
        for name, replica in by_name.items():
            stats = replica.routing_stats or {}
            if name not in self._known:
                self._known[name] = 0.0
                self._choice.add(name, now_s, stats.get("weight", 1.0))
            reported_s = stats.get("reported_s", 0.0)
            if reported_s > self._known[name]:
                self._known[name] = reported_s
                self._work_s[name] = stats["work_s"]
                self._choice.report(name, reported_s, stats["wait_s"], stats["service_s"])
