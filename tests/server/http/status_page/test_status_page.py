from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.operations.browser import PROGRAM, Page, browser
from polyrec.planner.plan import Plan
from polyrec.server.app.engine import Engine
from polyrec.server.app.run import ServerProcess, start
from polyrec.server.http.app import create_app
from polyrec.server.http.status_page import FILES

TAB = 9


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
    tab.until("document.querySelector('#latency-chart svg')")
    return tab


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
        assert "https://" not in answer.text
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
    later = app.send("GET", "/v1/status", params={"since": status["now"]["t"]}).json()
    assert all(sample["t"] > status["now"]["t"] for sample in later["history"])
    engine.close()


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
    assert page.run("document.querySelectorAll('.chart svg').length") == 3
    assert page.complaints == []


def test_the_page_is_updated(page: Page, used_server: ServerProcess) -> None:
    with httpx.Client(base_url=used_server.url) as client:
        for _ in range(200):
            client.post("/v1/predict", content=b'{"instances": [{}]}')
    page.until("document.getElementById('sentence').innerText.includes('of 221 requests')")


def test_values_are_never_markup(page: Page) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    page.run(
        f"paused = true; last.model = {json.dumps(evil)}; last.serving.paths[0].device = {json.dumps(evil)};"
        f" last.serving.lanes[0].kind = {json.dumps(evil)}; draw()"
    )
    assert evil in text(page, "#model")
    assert evil in text(page, "#paths")
    assert page.run("document.images.length") == 0
    assert page.run("window.hacked === undefined")


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (390, "dark"), (768, "dark"), (1600, "light")])
def test_the_page_fits_phone_and_desktop_light_and_dark(page: Page, width: int, scheme: str) -> None:
    page.prefer(scheme)
    page.size(width, 800, phone=width < 600)
    page.run("new Promise(r => setTimeout(r))")
    page.run("draw()")
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
    for _ in range(16):
        page.press("Tab", TAB)
        reached.append(page.run("document.activeElement.id || document.activeElement.innerText"))
    for control in ("window", "pause", "theme", "plan", "metrics"):
        assert control in reached


def test_the_page_shows_that_the_server_is_gone(bundle_dir: Path, tab: Page) -> None:
    with start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as child:
        tab.open(child.url)
        tab.until("document.getElementById('word').innerText === 'Ready, no requests'")
    tab.until("document.getElementById('word').innerText === 'No answer'")
