"""Servers with a canary: bundles made worse or slower on purpose, and their control."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.app.engine import Engine
from tests.server.placing import ALLOWED

PATIENCE_S = 600.0
PlanOf = Callable[[float], Path]
QUICK = {"min_requests": 100, "max_failed": 1.0, "max_late": 1.0, "max_slowdown": 1000.0, "slack_ms": 1e5}
"""Judges scores after 100 requests, and no time: the machine may be busy."""


@dataclass(frozen=True)
class Trial:
    """A client of an engine, and calls of its rollout."""

    client: Any
    engine: Engine

    def call(self, name: str, **arguments: Any) -> httpx.Response:
        headers = {**ALLOWED, "content-type": "application/json"}
        body = json.dumps(arguments).encode()
        answer: httpx.Response = self.client.post(f"/v1/admin/rollout/{name}", body, headers)
        return answer

    def start(self, plan: Path, **arguments: Any) -> dict[str, Any]:
        answer = self.call("start", plan=str(plan), **arguments)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def status(self) -> dict[str, Any]:
        answer = self.client.send("GET", "/v1/admin/rollout", headers=ALLOWED)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self) -> dict[str, Any]:
        """Waits until the rollout has ended."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while self.engine.rollout is not None:
                    await asyncio.sleep(0.02)

        self.client.runner.run(wait())
        return dict(self.status()["ended"][0])

    def ask_until_ended(self, requests: list[Any]) -> list[httpx.Response]:
        """Asks again and again until the rollout has ended. Returns all answers."""
        answers: list[httpx.Response] = []
        end_s = time.monotonic() + PATIENCE_S
        while self.engine.rollout is not None:
            assert time.monotonic() < end_s
            answers += self.ask(requests)
        return answers

    def ask(
        self, requests: list[Any], times: int = 1, headers: dict[str, str] | None = None
    ) -> list[httpx.Response]:
        """Answers to rankings, all at once. Each is of another user."""
        bodies = [
            json.dumps({"context": {**r.context, "user_id": f"u{i}"}, "candidates": r.candidates})
            for i, r in enumerate(requests * times)
        ]
        calls = [("POST", "/v1/rank", {"content": body, "headers": headers}) for body in bodies]
        answers: list[httpx.Response] = []
        for at in range(0, len(calls), 100):
            answers += self.client.together(calls[at : at + 100])
        return answers


@pytest.fixture
def trial(client_of: Callable[[Plan], Any], plan: Plan) -> Trial:
    """A server of `plan` that can be administered."""
    client = client_of(plan)
    return Trial(client, client.app.engine)


@pytest.fixture(scope="session")
def plan_of(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, plan: Plan) -> Callable[[float], Path]:
    """Plan files of versions whose dense weights are multiplied by a factor; 1: a good one."""
    made: dict[float, Path] = {}

    def make(factor: float) -> Path:
        if factor not in made:
            folder = tmp_path_factory.mktemp("versions")
            model = deepcopy(bundle.model())
            with torch.no_grad():
                for parameter in model.net.parameters():
                    parameter.mul_(factor)
            parts = (bundle.manifest.representation, bundle.encoder, {}, {})
            path = write_bundle(folder / "table", model, *parts).path
            planned = plan.paths[0].model_copy(update={"bundle": path})
            save_plan(plan.model_copy(update={"paths": (planned,)}), folder / "plan.json")
            made[factor] = folder / "plan.json"
        return made[factor]

    return make
