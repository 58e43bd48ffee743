from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from polyrec.models.tiers.tier_settings import RemoteStore, TierCuts
from polyrec.planner.placement import PlacedPath, Placement
from polyrec.planner.plan import Plan
from polyrec.server.http.plan import redact


def test_plan_and_open_paths_are_served(client: Any, plan: Plan, bundle_dir: Any) -> None:
    expected = plan.model_dump(mode="json", exclude_none=True)
    expected["paths"][0]["bundle"] = bundle_dir.name
    assert client.send("GET", "/v1/plan").json() == expected
    opened = client.send("GET", "/v1/paths").json()
    (path,), (lane,) = opened["paths"], opened["lanes"]
    assert (lane["kind"], lane["alive"]) == ("inline", True)
    assert opened["routing"]["queued_rows"] == 0
    assert path["name"] == "table@cpu"
    assert (path["runtime"], path["device"]) == ("torch", "cpu")
    assert path["bundle"]["path"] == bundle_dir.name
    assert path["quality"] == path["metrics"]["test"]["information"]


def test_no_page_shows_a_folder_of_this_machine(client: Any, bundle_dir: Path) -> None:
    for page in (
        "/v1/plan",
        "/v1/paths",
        "/v1/status",
        "/v1/route",
        "/metrics",
        "/",
        "/v2/models/dlrm/config",
    ):
        assert str(bundle_dir.parent) not in client.send("GET", page).text, page


def test_a_redacted_plan_is_valid_without_credentials_and_folders(plan: Plan) -> None:
    for url, shown in (
        ("redis://user:s3cret@store:6379/1", "redis://store:6379/1"),
        ("rediss://:s3cret@[fd00::1]:6379", "rediss://[fd00::1]:6379"),
        ("unix:///srv/run/redis.sock", "unix://redis.sock"),
    ):
        store = RemoteStore(
            url=url,
            password=SecretStr("s3cret"),
            password_file=Path("/srv/s3cret"),
            ca_file=Path("/srv/ca.pem"),
        )
        placed = PlacedPath(path="table@cpu", tables={"item": TierCuts(host=1, remote=2)})
        placement = Placement(paths=(placed,), directory=Path("/srv/tiers"), remote=store)
        whole = plan.model_copy(update={"placement": placement})
        page = redact(whole).model_dump_json(exclude_none=True)
        assert "s3cret" not in page
        assert "/srv" not in page
        remote = Plan.model_validate_json(page).placement
        assert remote is not None
        assert remote.remote is not None
        assert remote.remote.url == shown
        assert "s3cret" not in repr(whole.placement.remote.password if whole.placement.remote else None)
