"""The whole loop against a real server: what it logs is learned, tried on its requests, and promoted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.operations.written_log import request_starts
from polyrec.cli.main import main
from polyrec.client.admin import AdminCalls
from polyrec.loop.canary import Canary
from polyrec.loop.folder import LoopFolder
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.schema.schema import Schema
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.polyrec.loop.conftest import with_scaled_weights

TOKEN, CLIENT = "a token of sixteen and more", "a token of a shop, for rankings"
# nothing is judged by time: the machine may be busy
LAX = (
    *("--max-failed", "1", "--max-late", "1", "--max-slowdown", "1000", "--slack-ms", "1e5"),
    *("--min-requests", "50", "--promote-after", "1s", "--share", ".5", "--shadow", ".2"),
)


@pytest.fixture(scope="module", autouse=True)
def _token() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYREC_ADMIN_TOKEN", TOKEN)
        yield


class Shop:
    """A client of the server: asks for rankings and tells what was clicked."""

    def __init__(self, url: str, rows: pa.Table, schema: Schema) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {CLIENT}"})
        starts = [*request_starts(rows, schema).tolist(), rows.num_rows]
        self._requests = []
        for a, b in pairwise(starts):
            part = rows.slice(a, b - a)
            body = {
                "context": part.slice(0, 1).select(schema.context.names).to_pylist()[0],
                "candidates": part.select(schema.candidate.names).to_pydict(),
            }
            clicked = [i for i, y in enumerate(part.column("clicked").to_pylist()) if y]
            self._requests.append((json.dumps(body).encode(), clicked))

    def close(self) -> None:
        self._http.close()

    def visit(self, tag: str) -> None:
        """Asks once for every ranking, and reports its clicks."""
        for i, (body, clicked) in enumerate(self._requests):
            headers = {"content-type": "application/json", "x-request-id": f"{tag}-{i}"}
            self._http.post("/v1/rank", content=body, headers=headers).raise_for_status()
            if clicked:
                given = {"request_id": f"{tag}-{i}", "positives": clicked}
                self._http.post("/v1/feedback", json=given).raise_for_status()

    @contextmanager
    def visiting(self) -> Iterator[None]:
        """Visits again and again in a thread."""
        stop = threading.Event()

        def visit() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                self.visit(f"again-{turn}")

        thread = threading.Thread(target=visit)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def serving(folder: Path) -> Iterator[ServerProcess]:
    settings = {
        "tokens": folder / "tokens.json",
        "plan": folder / "plan.json",
        "admin_token": TOKEN,
        "drain_grace_s": 0,
        "prediction_log": folder / "log",
        "prediction_log_flush_s": 0.2,
        "prediction_log_window_s": 1,
        "default_budget_ms": 10_000,
    }
    with start(settings) as child:
        yield child


def logged(folder: Path) -> int:
    return sum(pq.ParquetFile(file).metadata.num_rows for file in folder.rglob("part-*.parquet"))


def files_of(folder: Path) -> list[str]:
    files = {"--plan": "plan.json", "--log": "log", "--state": "state"}
    return [word for flag, name in files.items() for word in (flag, str(folder / name))]


def run_once(folder: Path, server: ServerProcess, *more: str) -> int:
    limits = ("--least-clicks", "20", "--margin", "1", "--settle", "1s", "--url", server.url)
    training = ("--train-options", "--epochs 1 --step-size .05")
    while True:
        code = main(["loop", "run", *files_of(folder), *limits, *training, *LAX, "--once", *more])
        # until the log's window has passed
        if code or record(folder)["state"] != "waiting":
            return code
        time.sleep(0.2)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "state/iterations/0001/record.json").read_text())
    return found


@pytest.fixture(scope="module")
def visits(days: Sequence[pa.Table], bundle: Bundle) -> pa.Table:
    return days[0].slice(0, int(request_starts(days[0], bundle.manifest.schema_)[250]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, _token: None, bundle: Bundle, visits: pa.Table) -> Path:
    """A folder of a server's plan, its log of visits, and a loop whose canary is next: `state` and `trained`.

    A training takes longer than what follows, so it is one for all.
    """
    folder = tmp_path_factory.mktemp("canary")
    save_plan(single_path_plan(bundle.path, "table", "onnx"), folder / "plan.json")
    clients = [{"name": "shop", "token": CLIENT, "rights": ["feedback"], "requests_per_second": 10_000}]
    (folder / "tokens.json").write_text(json.dumps({"clients": clients}))
    with serving(folder) as server:
        shop = Shop(server.url, visits, bundle.manifest.schema_)
        shop.visit("first")
        shop.close()
        patience = time.monotonic() + 60
        while logged(folder / "log" / "requests") < 250 or not logged(folder / "log" / "feedback"):
            assert time.monotonic() < patience
            time.sleep(0.1)
        (folder / "state" / "control").mkdir(parents=True)
        state = ["--state", str(folder / "state")]
        main(["loop", "hold", "canary", *state])
        assert run_once(folder, server) == 3
        assert record(folder)["step"] == "canary"
        main(["loop", "release", "canary", *state])
    shutil.copytree(folder / "state", folder / "trained")
    return folder


@pytest.fixture
def folder(trained: Path) -> Path:
    """The folder of `trained`, with the state of its loop restored, since every test changes it."""
    shutil.rmtree(trained / "state")
    shutil.copytree(trained / "trained", trained / "state")
    return trained


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server of the plan from before the canary."""
    with serving(folder) as child:
        yield child


@pytest.fixture
def shop(server: ServerProcess, visits: pa.Table, bundle: Bundle) -> Iterator[Shop]:
    found = Shop(server.url, visits, bundle.manifest.schema_)
    yield found
    found.close()


@pytest.fixture
def run(server: ServerProcess, folder: Path) -> Callable[..., int]:
    return lambda *more: run_once(folder, server, *more)


@pytest.mark.long
def test_loop_trains_on_the_log_tries_a_canary_and_promotes_it(
    shop: Shop, server: ServerProcess, run: Callable[..., int], folder: Path, bundle: Bundle
) -> None:
    shutil.rmtree(folder / "state")
    with shop.visiting():
        assert run("--max-psi", "1", "--max-loss", "1") == 0
    found = record(folder)
    assert (found["state"], found["serving"]) == ("promoted", bundle.manifest.version)
    assert [d["step"] for d in found["done"]] == ["check", "train", "evaluate", "publish", "canary"]
    new = load_bundle(load_plan(folder / "state" / "plan.json").paths[0].bundle)
    assert found["done"][1]["result"]["figures"]["version"] == new.manifest.version
    with AdminCalls(server.url) as calls:
        ended = calls.get("rollout")["ended"][0]
    page = httpx.get(f"{server.url}/v1/status", headers={"Authorization": f"Bearer {CLIENT}"}).text
    assert "loop: iteration 1: evaluate: information gain" in page
    assert "loop: iteration 1: promoted" in page
    assert str(folder) not in page
    assert (ended["outcome"], ended["canary_version"]) == ("promoted", new.manifest.version)


def test_a_bad_bundle_is_rolled_back_by_the_canary_and_forced_by_an_operator(
    shop: Shop, server: ServerProcess, run: Callable[..., int], folder: Path, bundle: Bundle
) -> None:
    state = ["--state", str(folder / "state")]
    # as if the evaluation had not seen it
    good = load_bundle(folder / "state/iterations/0001/bundle")
    halved = with_scaled_weights(good.model(), lambda _: 0.5)
    parts = (good.manifest.representation, good.encoder, {}, good.manifest.training)
    version = write_bundle(good.path, halved, *parts, replace=True).manifest.version
    text = (folder / "state/iterations/0001/record.json").read_text()
    trained = record(folder)["done"][1]["result"]["figures"]["version"]
    (folder / "state/iterations/0001/record.json").write_text(text.replace(trained, version))
    with shop.visiting():
        assert run() == 3
    found = record(folder)
    assert (found["state"], found["step"]) == ("rolled_back", "canary")
    assert found["done"][-1]["result"]["reason"].startswith("rolled back after")
    assert main(["loop", "force", *state]) == 0
    assert run() == 0
    assert record(folder)["state"] == "promoted"
    with AdminCalls(server.url) as calls:
        outcomes = [(e["outcome"], e["reason"]) for e in calls.get("rollout")["ended"]]
    assert outcomes[0] == ("promoted", "forced by an operator")
    assert outcomes[1][0] == "rolled_back"


def test_a_canary_without_requests_is_rolled_back_after_its_time(
    run: Callable[..., int], folder: Path
) -> None:
    assert run("--canary-for", "1s") == 3
    found = record(folder)
    assert found["state"] == "rolled_back"
    assert "not promoted within 1 s" in found["done"][-1]["result"]["reason"]


def test_a_server_of_another_version_holds_the_iteration_also_if_it_is_forced(
    server: ServerProcess, run: Callable[..., int], folder: Path, nested: Bundle
) -> None:
    save_plan(single_path_plan(nested.path, "table", "onnx", width=8), folder / "other.json")
    state, plan = ["--state", str(folder / "state")], (folder / "state" / "plan.json").read_text()
    with AdminCalls(server.url) as calls:
        calls.post("reload", {"plan": str(folder / "other.json")})
        for _ in range(2):
            assert run() == 3
            found = record(folder)
            assert (found["state"], found["step"]) == ("held", "canary")
            reason = found["done"][-1]["result"]["reason"]
            assert f"the server serves version {nested.manifest.version}" in reason
            # nothing was rolled out
            assert (folder / "state" / "plan.json").read_text() == plan
            assert main(["loop", "force", *state]) == 0
        calls.post("reload", {"plan": str(folder / "plan.json")})
        assert run() == 0
        ended = calls.get("rollout")["ended"]
    assert record(folder)["state"] == "promoted"
    assert (ended[0]["outcome"], ended[0]["reason"]) == ("promoted", "forced by an operator")
    assert {each["outcome"] for each in ended[1:]} == {"rolled_back"}


def kill_at_canary(server: ServerProcess, folder: Path, calls: AdminCalls) -> None:
    """Runs the loop until its rollout is in progress, and kills it."""
    command = [sys.executable, "-m", "polyrec", "loop", "run", *files_of(folder), "--url", server.url]
    with subprocess.Popen(command) as child:
        while calls.get("rollout")["rollout"] is None:
            assert child.poll() is None
            time.sleep(0.1)
        child.kill()


@pytest.mark.parametrize("meanwhile", [pytest.param("nothing", marks=pytest.mark.long), "promote"])
def test_a_killed_loop_finds_its_canary_again(
    server: ServerProcess, run: Callable[..., int], folder: Path, meanwhile: str
) -> None:
    with AdminCalls(server.url) as calls:
        kill_at_canary(server, folder, calls)
        if meanwhile == "promote":
            calls.post("rollout/promote", {})
        assert run("--canary-for", "1s") == (0 if meanwhile == "promote" else 3)
        (ended,) = calls.get("rollout")["ended"]
    found = record(folder)
    assert found["state"] == ended["outcome"] == ("promoted" if meanwhile == "promote" else "rolled_back")
    version = found["done"][1]["result"]["figures"]["version"]
    assert ended["canary_version"] == version


def test_an_iteration_dropped_while_its_loop_is_down_takes_back_its_canary(
    server: ServerProcess, run: Callable[..., int], folder: Path
) -> None:
    """Else the server would promote it later."""
    with AdminCalls(server.url) as calls:
        kill_at_canary(server, folder, calls)
        assert main(["loop", "drop", "--state", str(folder / "state")]) == 0
        main(["loop", "hold", "canary", "--state", str(folder / "state")])
        assert run() == 3
        status = calls.get("rollout")
    assert record(folder)["state"] == "dropped"
    assert status["rollout"] is None
    (ended,) = status["ended"]
    assert (ended["outcome"], ended["reason"]) == ("rolled_back", "the loop's iteration was dropped")


def test_a_loop_that_is_given_another_plan_takes_back_its_canary(
    server: ServerProcess, run: Callable[..., int], folder: Path, nested: Bundle
) -> None:
    """Else the server would promote it later, and serve what the loop's plan does not have."""
    save_plan(single_path_plan(nested.path, "table", "onnx", width=8), folder / "other.json")
    with AdminCalls(server.url) as calls:
        kill_at_canary(server, folder, calls)
        (folder / "state" / "plan.json").unlink()
        main(["loop", "hold", "check", "--state", str(folder / "state")])  # of the iteration that follows
        assert run("--plan", str(folder / "other.json")) == 3
        status = calls.get("rollout")
    assert record(folder)["state"] == "dropped"
    assert status["rollout"] is None
    (ended,) = status["ended"]
    assert ended["outcome"] == "rolled_back"
    assert f"the loop's plan now has version {nested.manifest.version}" in ended["reason"]


def test_a_rollout_that_an_operator_started_instead_is_left_alone(
    server: ServerProcess, run: Callable[..., int], folder: Path, nested: Bundle
) -> None:
    other = single_path_plan(nested.path, "table", "onnx", width=8)
    save_plan(other, folder / "other.json")
    asked = []
    with AdminCalls(server.url) as calls:

        def replaces_the_canary_then_drops() -> bool:
            asked.append(calls.get("rollout")["rollout"])
            if asked[-1] is None:
                return False
            if len(asked) > 2:
                return True
            calls.post("rollout/rollback", {"reason": "not today"})
            calls.post("rollout/start", {"plan": str(folder / "other.json")})
            return False

        state = LoopFolder(folder / "state")
        iteration = state.last()
        assert iteration is not None
        result = Canary(calls, {}, 60.0).execute(iteration, state, replaces_the_canary_then_drops)
        assert (result.verdict, result.reason.split(": ")[1]) == ("roll_back", "not today")
        assert calls.get("rollout")["rollout"]["canary_version"] == nested.manifest.version
