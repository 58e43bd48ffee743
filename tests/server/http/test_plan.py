from __future__ import annotations

from typing import Any

from planner.plan import Plan


def test_plan_and_paths_say_what_is_followed_and_what_is_open(
    client: Any, plan: Plan, bundle_dir: Any
) -> None:
    assert client.send("GET", "/v1/plan").json() == plan.model_dump(mode="json", exclude_none=True)
    opened = client.send("GET", "/v1/paths").json()
    (path,), (lane,) = opened["paths"], opened["lanes"]
    assert (lane["kind"], lane["alive"]) == ("inline", True)
    assert opened["routing"]["queued_rows"] == 0
    assert path["name"] == "table@cpu"
    assert (path["runtime"], path["device"]) == ("torch", "cpu")
    assert path["bundle"]["path"] == str(bundle_dir)
    assert "auc" in path["quality"]["test"]
