from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.operations.browser import PROGRAM, Page, browser
from polyrec.planner.plan import Plan
from polyrec.planner.routing.explain import RouterSnapshot
from polyrec.server.app.engine import Engine
from polyrec.server.child import ServerProcess
from polyrec.server.http.app import create_app
from polyrec.server.http.status_page import FILES
from polyrec.server.http.status_page.documents import StatusResponse
from tests.forking import start

TAB, ESCAPE, LEFT = 9, 27, 37
RECORDED = Path(__file__).parent / "status.json"
"""An answer of /v1/status, which test_pictures.py draws."""


@pytest.fixture(scope="module")
def isolated_server(bundle_dir: Path) -> Iterator[ServerProcess]:
    """A server of this file's tests alone."""
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as child:
        yield child


@pytest.fixture(scope="module")
def used_server(isolated_server: ServerProcess) -> ServerProcess:
    """The same after twenty answered requests and one that expired."""
    with httpx.Client(base_url=isolated_server.url) as client:
        for _ in range(20):
            assert client.post("/v1/predict", content=b'{"instances": [{}, {}]}').status_code == 200
        budget = {"x-latency-budget-ms": "1e-6"}
        assert client.post("/v1/predict", content=b'{"instances": [{}]}', headers=budget).status_code == 504
    return isolated_server


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with browser() as page:
        yield page


@pytest.fixture
def page(tab: Page, used_server: ServerProcess) -> Page:
    """The status page, once it has drawn."""
    tab.complaints.clear()
    tab.size(1200, 900)
    tab.prefer("light")
    tab.open(used_server.url)
    tab.until("document.querySelector('#latency-chart canvas')")
    return tab


DRAW = "import('/status/page.js').then((m) => m.draw())"
ALTER = "Promise.all([import('/status/page.js'), import('/status/samples.js')]).then(([page, {view}]) => {"
"""Runs what follows with the modules of the page: page.pause(), page.draw(), view.last."""


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def test_every_file_comes_with_a_policy_that_allows_nothing_else(client: Any) -> None:
    for path, (_, content_type) in FILES.items():
        answer = client.send("GET", path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == content_type
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text.replace("/*! https://github.com/leeoniya/uPlot (v", "")
        assert "innerHTML" not in answer.text
        assert " style=" not in answer.text


def test_status_counts_requests(plan: Plan, client: Any) -> None:
    engine = Engine()
    app = type(client)(client.runner, create_app(engine))
    assert app.send("GET", "/v1/status").json()["serving"] is None
    assert app.send("GET", "/v1/status").json()["state"] == "loading"
    engine.load(plan)
    app.post("/v1/predict", b'{"instances": [{}, {}]}')
    app.post("/v1/predict", b"{")
    status = app.send("GET", "/v1/status").json()
    assert status["now"]["outcomes"]["ok"] == 1
    assert status["now"]["outcomes"]["invalid"] == 1
    assert status["now"]["rows"] == {"table@cpu": [0, 2]}
    assert sum(status["now"]["latency"]) == 1
    assert len(status["now"]["latency"]) == len(status["edges_s"]) + 1
    assert status["serving"]["routing"]["lanes"][0]["name"] == "cpu"
    assert status["history"][0]["t"] < status["now"]["t"]
    assert status["metric"] == "information"
    assert set(status["error_budget"]["burn_rates"]) == {"5m", "1h", "6h"}
    assert status["events"] == []
    engine.load(plan)
    engine.set_routing(plan.routing)
    events = app.send("GET", "/v1/status").json()["events"]
    assert [event["kind"] for event in events] == ["reload", "routing"]
    later = app.send("GET", "/v1/status", params={"since": status["now"]["t"]}).json()
    assert all(sample["t"] > status["now"]["t"] for sample in later["history"])
    engine.close()


def test_the_recorded_answer_is_one_that_the_server_would_give() -> None:
    status = StatusResponse.model_validate_json(RECORDED.read_bytes())
    assert {event.kind for event in status.events} >= {"lane_died", "lane_back", "overload_began"}
    assert len(status.history) > 10


def test_the_table_of_routing_reads_what_the_server_gives(client: Any) -> None:
    source = client.send("GET", "/status/tables.js").text
    told = source[source.index("const r = last.serving.routing") : source.index('$("routing")')]
    read = set(re.findall(r"\br\.(\w+)", told))
    assert "queries_s" in read
    assert read <= {field.name for field in fields(RouterSnapshot)}


@pytest.mark.parametrize("docs", [True, False])
def test_the_page_links_to_the_api_where_that_is_served(client: Any, docs: bool) -> None:
    app = type(client)(client.runner, create_app(Engine(), docs=docs))
    linked = 'href="/docs"' in app.send("GET", "/").text
    assert linked == docs == (app.send("GET", "/docs").status_code == 200)


@pytest.mark.parametrize("query", ["since=x", "since=nan", "since=", "until=3"])
def test_an_invalid_parameter_is_400(client: Any, query: str) -> None:
    answer = client.send("GET", f"/v1/status?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]


def test_the_page_shows_a_missed_slo_and_why(page: Page) -> None:
    # 20 of 21 are 95.2%, the SLO is 99%
    assert text(page, "#word") == "SLO missed"
    assert "95.2% of 21 requests" in text(page, "#sentence")
    assert "expired in the queue" in text(page, "#because")
    assert "table@cpu" in text(page, "#paths")
    assert "in service" in text(page, "#lanes")
    assert "host" in text(page, "#tiers")
    assert page.run("document.querySelectorAll('.chart canvas').length") == 4
    assert "information gain of a row" in text(page, "#quality-note")
    # 1 of 21 missed, and 1% may: 4.76 times the budget, which means nothing yet
    assert text(page, "#budget") == "\u2013"
    assert text(page, "#budget-note").startswith("known after 100 requests; 1% of the requests")
    assert page.complaints == []


def test_no_figure_of_the_page_is_missing(page: Page) -> None:
    shown = text(page, "body")
    assert "rows/s" in shown
    assert "NaN" not in shown
    assert "undefined" not in shown


def test_the_page_is_updated(page: Page, used_server: ServerProcess) -> None:
    with httpx.Client(base_url=used_server.url) as client:
        for _ in range(200):
            client.post("/v1/predict", content=b'{"instances": [{}]}')
    page.until("document.getElementById('sentence').innerText.includes('of 221 requests')")


def test_values_are_never_markup(page: Page) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    page.run(
        f"{ALTER} page.pause(); const evil = {json.dumps(evil)}, {{ last }} = view; last.model = evil;"
        " last.serving.paths[0].device = evil; last.serving.lanes[0].kind = evil;"
        " last.events.push({t: 0, kind: 'reload', text: evil}); page.draw(); })"
    )
    assert evil in text(page, "#events")
    assert evil in text(page, "#model")
    assert evil in text(page, "#paths")
    assert page.run("document.images.length") == 0
    assert page.run("window.hacked === undefined")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (390, "dark"), (768, "dark"), (1600, "light")])
def test_the_page_fits_phone_and_desktop_light_and_dark(page: Page, width: int, scheme: str) -> None:
    page.prefer(scheme)
    page.size(width, 800, phone=width < 600)
    page.run("new Promise(r => setTimeout(r))")
    page.run(DRAW)
    assert page.run("document.documentElement.scrollWidth") <= width
    page.until(f"document.documentElement.dataset.theme === '{scheme}'")
    # WCAG AA: 4.5 to 1 for text
    contrast = """(() => {
      const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
        .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (!c.includes(", 0)")) return c; } return "rgb(255, 255, 255)"; };
      return Math.min(...[...document.querySelectorAll("p, h1, h2, td, th, dt, dd, li, a, button")]
        .filter((e) => e.innerText && e.offsetParent && !e.classList.contains("skip")).map((e) => {
          const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05); }));
    })()"""
    assert page.run(contrast) >= 4.5
    assert page.complaints == []


def test_controls_can_be_reached_by_keyboard(page: Page) -> None:
    reached = []
    for _ in range(22):
        page.press("Tab", TAB)
        reached.append(page.run("document.activeElement.id || document.activeElement.innerText"))
    for control in ("window", "pause", "theme", "latency-chart", "gain-chart", "plan", "metrics"):
        assert control in reached


def test_all_charts_show_the_values_at_one_cursor(page: Page) -> None:
    charts = ("latency", "outcomes", "path", "gain")
    page.run(f"{ALTER} page.pause(); }})")
    assert {text(page, f"#{chart}-at") for chart in charts} == {"now"}
    place = page.run(
        "(({x, y, width}) => [x + 0.8 * width, y + 40])(document.querySelector"
        "('#outcomes-chart .u-over').getBoundingClientRect())"
    )
    page.point(*place)
    page.until("document.querySelector('#outcomes-at').innerText.includes('s ago')")
    assert len({text(page, f"#{chart}-at") for chart in charts}) == 1
    page.press("Escape", ESCAPE)


def test_a_drag_zooms_all_charts_and_the_present_can_be_shown_again(page: Page) -> None:
    assert page.run("document.querySelector('#live').hidden")
    x, y, width = page.run(
        "(({x, y, width}) => [x, y, width])(document.querySelector"
        "('#latency-chart .u-over').getBoundingClientRect())"
    )
    page.drag((x + 0.3 * width, y + 40), (x + 0.6 * width, y + 40))
    page.until("!document.querySelector('#live').hidden")
    page.run("document.querySelector('#live').click()")
    assert page.run("document.querySelector('#live').hidden")
    assert page.complaints == []


def test_the_cursor_moves_by_arrow_keys(page: Page) -> None:
    page.run("document.querySelector('#latency-chart').focus()")
    page.press("ArrowLeft", LEFT)
    page.until("document.querySelector('#gain-at').innerText.includes('s ago')")
    page.press("Escape", ESCAPE)
    page.until("document.querySelector('#gain-at').innerText === 'now'")


def test_what_the_lanes_can_do_is_said_to_depend_on_sizes(page: Page) -> None:
    """After one request of two rows it was a sixth of what the plan promises."""
    assert text(page, "#goodput-note").endswith("/s on their fastest paths, at present request sizes")


def test_events_are_listed_newest_first(page: Page) -> None:
    page.run(
        f"{ALTER} page.pause(); view.last.events = [{{t: 0, kind: 'reload', text: 'reload: b'}},"
        " {t: 1, kind: 'lane_died', text: 'lane cpu.0 died'}]; page.draw(); })"
    )
    told = text(page, "#events")
    assert 0 <= told.index("lane cpu.0 died") < told.index("reload: b")


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ("requests: 0, final_after_s: 3665", "no requests yet; each counts 61 min after its answer"),
        ("requests: 9, clients: {}, labeled_s: null", "9 requests, none labeled"),
        ("requests: 9, clients: {shop: 3, app: 2}, labeled_s: 960", "9 requests, 5 labeled"),
        ("requests: 9, clients: {a: 5}, labeled_s: 700", "9 requests, 5 labeled, none in the newest 5 min"),
    ],
)
def test_the_page_tells_on_what_live_quality_is_measured(page: Page, report: str, told: str) -> None:
    """Otherwise an operator cannot tell why there are no figures yet, or that labels stopped."""
    assert "live quality" not in text(page, "#routing")
    live = f"{{paths: {{}}, value_changes: {{}}, error: null, since_s: 0, until_s: 1000, {report}}}"
    page.run(f"{ALTER} page.pause(); view.last.live_quality = {live}; page.draw(); }})")
    assert text(page, "#routing").endswith(told)
    assert page.complaints == []


@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        ("view.samples.at(-1).outcomes.late += 50;", "broken", "SLO missed"),
        (
            "view.samples.at(-1).outcomes.late += 50; view.last.serving.routing.lanes[0].factor = 4.12;",
            "broken",
            "slower than profiled: is its device busy",
        ),
        (
            "const now = view.samples.at(-1); now.outcomes.late += 50; now.waited_s += now.t;",
            "broken",
            "of the time for a processor that other work used",
        ),
        ("view.samples[0].outcomes.expired = view.samples.at(-1).outcomes.expired;", "kept", "SLO met"),
        (
            "view.samples[0].outcomes.expired = view.samples.at(-1).outcomes.expired;"
            " view.last.serving.routing.lanes.push({...view.last.serving.routing.lanes[0], alive: false});",
            "warn",
            "out of service",
        ),
        ("view.last.serving.routing.lanes[0].alive = false;", "broken", "No lane alive"),
        ("view.last.state = 'loading';", "unknown", "Loading"),
    ],
)
def test_the_verdict_and_the_icon_of_the_tab_have_a_state(
    page: Page, change: str, state: str, told: str
) -> None:
    page.run(f"{ALTER} page.pause(); view.last.error_budget.burn_rates['1h'] = 0; {change} page.draw(); }})")
    assert page.run("document.querySelector('#verdict').className") == f"verdict {state}"
    assert told in text(page, "#verdict")
    back = {"kept": "0b6e4f", "warn": "b25e02", "broken": "b3261e", "unknown": "5b6877"}[state]
    icon = page.run("document.querySelector('#icon').href")
    assert icon.startswith("data:image/svg+xml,")
    assert f"%23{back}" in icon
    assert page.complaints == []


def test_tables_are_cards_on_a_phone(page: Page) -> None:
    page.size(390, 800, phone=True)
    label = "getComputedStyle(document.querySelector('#paths td:nth-child(3)'), '::before').content"
    assert page.run(label) == '"quality"'
    page.run(DRAW)
    cut = "[...document.querySelectorAll('td')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    assert page.run(cut) == 0


@pytest.mark.parametrize("width", [800, 1000, 1280])
def test_no_column_of_a_table_is_cut(page: Page, width: int) -> None:
    page.size(width, 800)
    page.run(DRAW)
    cut = "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert page.run(cut) == 0


def test_the_page_shows_that_the_server_is_gone(bundle_dir: Path, tab: Page) -> None:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as child:
        tab.open(child.url)
        tab.until("document.getElementById('word').innerText === 'Ready, no requests'")
    tab.until("document.getElementById('word').innerText === 'No answer'")
