"""Every panel of every dashboard, its query asked of a real Prometheus that scrapes a real server."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from benchmarks.operations.prometheus import (
    ALERTMANAGER,
    HOW,
    HOW_ALERTMANAGER,
    PROGRAM,
    Prometheus,
    alertmanager,
    prometheus,
)
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.metrics.metrics import SERVER_WIDE, Metrics
from tests.forking import start

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
FILES = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SCHEMA_OF_GRAFANA = {"12.3": 42}
"""schemaVersion that a release writes (its DashboardMigrator.ts)."""
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]
RECORDED = {rule["record"] for group in RULES for rule in group["rules"] if "record" in rule}


def dashboard(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def panels(file: Path) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(file)["panels"] if panel["type"] != "row"]


QUERIES = [
    pytest.param(target["expr"], id=f"{file.stem}: {panel['title']} {target['refId']}")
    for file in FILES
    for panel in panels(file)
    for target in panel["targets"]
] + [
    pytest.param(note["expr"], id=f"{file.stem}: {note['name']}")
    for file in FILES
    for note in dashboard(file)["annotations"]["list"]
    if "expr" in note
]
WHOLE_SERVER = [
    query
    for query in QUERIES
    if re.search(rf"\b({'|'.join(SERVER_WIDE)}|process)(_|{{)", str(query.values[0]))
]
MAY_BE_EMPTY = {
    # more than one plan has to have been opened within the minute
    "A plan took over",
    "A lane died",
    "Overload",
    "Connection limits",
    # where rows are in tiers
    "Bytes read",
    "Read time",
    "Tables with most misses",
}


@dataclass(frozen=True, slots=True)
class Observed:
    """A Prometheus, and the moment (Unix time) at which it had scraped what happened before.

    alertmanager: where its alerts go; None where there is none on this machine.
    """

    prom: Prometheus
    at_s: float
    alertmanager: str | None


@pytest.fixture(scope="module")
def observed(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """A server with two paths, asked for some seconds while Prometheus scrapes it every second.

    Beside it one with two models, hotels and shop.
    """
    if PROGRAM is None:
        pytest.skip(f"no Prometheus on this machine ({HOW})")
    plan = Plan.model_validate(
        {
            "paths": [
                {"name": "table@cpu", "bundle": bundle_dir, "runtime": "onnx"},
                {"name": "table.int8@cpu", "bundle": bundle_dir, "runtime": "onnx", "precision": "int8"},
            ]
        }
    )
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(plan, file)
    with ExitStack() as stack:
        server = stack.enter_context(start({"plan": file, "drain_grace_s": 0}))
        both = stack.enter_context(start({"plans": f"hotels={bundle_dir},shop={file}", "drain_grace_s": 0}))
        targets = [urlsplit(each.url).netloc for each in (server, both)]
        told = None if ALERTMANAGER is None else stack.enter_context(alertmanager())
        with prometheus(targets, every="1s", alertmanagers=[told] if told else []) as prom:
            # rates need two scrapes of each server: one before and one after something happened
            prom.until(f"count(up == 1) == {len(targets)} and on () (polyrec_ready == 1)")
            asyncio.run(_ask(server.url))
            recorded = "count(polyrec:slo_errors:ratio_rate1h)"
            prom.until(f"sum(polyrec_rows_total) >= {3 * ASKED} and on () {recorded}")
            asyncio.run(_ask(server.url))
            prom.until(f"sum(polyrec_rows_total) >= {6 * ASKED} and on () {recorded}")
            prom.until("sum(rate(polyrec_rows_total[20s])) > 0")
            prom.until("polyrec:correct_predictions:rate1m > 0")
            prom.until('count_over_time(polyrec_ready{model="shop"}[20s]) > 2')
            yield Observed(prom, time.time(), told)


ASKED, BROKEN = 60, 15


async def _ask(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(ASKED):
            patient = {"x-latency-budget-ms": "60000"}
            await client.post("/v1/predict", content=b'{"instances": [{}, {}, {}]}', headers=patient)
        # some that break the promise, one that is not understood
        for _ in range(BROKEN):
            await client.post(
                "/v1/rank", content=b'{"candidates": [{}]}', headers={"x-latency-budget-ms": "1e-6"}
            )
        await client.post("/v1/rank", content=b"{")


def with_variables(expression: str, model: str = ".*") -> str:
    """As Grafana sends it with everything or a model selected and the interval of a scrape a second."""
    asked = expression.replace("$__rate_interval", "20s").replace("$model", model).replace("$instance", ".*")
    assert "$" not in asked
    return asked


def test_only_panels_that_exist_may_be_empty() -> None:
    assert [name for name in MAY_BE_EMPTY if not any(name in str(query.id) for query in QUERIES)] == []


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_gives_data(observed: Observed, expression: str, request: pytest.FixtureRequest) -> None:
    found = observed.prom.query(with_variables(expression), observed.at_s)
    numbers = [float(series["value"][1]) for series in found]
    if not any(name in request.node.name for name in MAY_BE_EMPTY):
        assert numbers
        assert all(number == number for number in numbers), "NaN draws nothing"


@pytest.mark.parametrize("expression", WHOLE_SERVER)
def test_a_selected_model_keeps_what_its_server_has_as_a_whole(
    observed: Observed, expression: str, request: pytest.FixtureRequest
) -> None:
    """These metrics have the label of the target, dlrm, which is none of the models of that server."""
    if not any(name in request.node.name for name in MAY_BE_EMPTY):
        assert observed.prom.query(with_variables(expression, "shop"), observed.at_s)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_variable_finds_values(observed: Observed, file: Path) -> None:
    for variable in dashboard(file)["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match
            assert observed.prom.label_values(match[2], with_variables(match[1]))


def test_alerts_are_evaluated(observed: Observed) -> None:
    # the last of the requests may have been scraped after the rows that the fixture waited for
    observed.prom.until('ALERTS{alertstate="firing"}')
    states = {
        alert["labels"]["alertname"]
        for alert in observed.prom.api("alerts")["alerts"]
        if alert["state"] == "firing"
    }
    # a fifth of the requests came with an impossible budget
    assert states == {"PolyrecSloBurnsFast"}


def test_alerts_reach_alertmanager(observed: Observed) -> None:
    if observed.alertmanager is None:
        pytest.skip(f"no Alertmanager on this machine ({HOW_ALERTMANAGER})")
    observed.prom.until('ALERTS{alertstate="firing"}')
    end = time.monotonic() + 30
    groups: list[dict[str, Any]] = []
    while not groups:
        assert time.monotonic() < end, "no alert arrived"
        with urllib.request.urlopen(f"http://{observed.alertmanager}/api/v2/alerts/groups") as answer:
            groups = json.load(answer)
    assert [group["receiver"]["name"] for group in groups] == ["page"]
    assert groups[0]["labels"] == {"alertname": "PolyrecSloBurnsFast", "job": "polyrec", "model": "dlrm"}


def test_uids_are_fixed_and_unique() -> None:
    uids = [dashboard(file)["uid"] for file in FILES]
    assert uids == [f"polyrec-{file.stem}" for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_dashboards_can_be_provisioned(file: Path) -> None:
    board = dashboard(file)
    assert board["id"] is None
    image = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]["image"]
    version = image.partition("@")[0].rpartition(":")[2]
    assert board["schemaVersion"] == SCHEMA_OF_GRAFANA[".".join(version.split(".")[:2])]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "model", "instance"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(file):
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
    for one, other in combinations((panel["gridPos"] for panel in board["panels"]), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@pytest.mark.parametrize("expression", QUERIES)
def test_queries_name_metrics_that_exist(expression: str) -> None:
    exposed = {family.exposed for family in Metrics().families} | RECORDED
    for name in re.findall(r"\bpolyrec[\w:]+", expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in exposed or base in exposed, name
