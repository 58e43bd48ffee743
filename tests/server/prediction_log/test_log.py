"""A served request is in the log as it was asked and answered, and trains a model with its labels."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
import pyarrow as pa
import pytest
from pydantic import ValidationError

import polyrec
from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.parquet import parquet_files
from polyrec.models.data.prediction_log.log_format import FEEDBACK, REQUESTS
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.planner.plan import Plan
from polyrec.server.access.access import Access
from polyrec.server.app.engine import Engine
from polyrec.server.child import StartFailed
from polyrec.server.http.app import create_app
from polyrec.server.prediction_log.feedback import FeedbackItem, FeedbackList
from tests.forking import start
from tests.server.conftest import Arrays, Request
from tests.server.grpc.conftest import Stub, infer_request, probabilities
from tests.server.prediction_log.conftest import FEEDBACK_TOKEN, OTHER_TOKEN, LoggingServer, write_tokens

LATER_S = 4000.0
"""After the window in which labels may come."""
WAIT_S = 60.0


def rank(http: httpx.Client, request: Request, request_id: str = "r") -> Any:
    body = {"context": request.context, "candidates": request.candidates}
    answer = http.post("/v1/rank", content=orjson.dumps(body), headers={"X-Request-Id": request_id})
    assert answer.status_code == 200, answer.text
    return answer.json()


def feedback(http: httpx.Client, content: Any, token: str | None = FEEDBACK_TOKEN) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return http.post("/v1/feedback", content=orjson.dumps(content), headers=headers)


def logged(http: httpx.Client, outcome: str = "written") -> float:
    """Requests of the log with that outcome."""
    samples = MetricSamples(http.get("/metrics").text)
    return samples.total("polyrec_prediction_log_requests_total", outcome=outcome)


def events(http: httpx.Client) -> list[str]:
    """Kinds of the status page's events."""
    return [event["kind"] for event in http.get("/v1/status").json()["events"]]


def wait(condition: Callable[[], bool]) -> None:
    """Waits for what another process does."""
    give_up_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def rows_of(folder: Path, bundle: Bundle, columns: list[str]) -> list[dict[str, Any]]:
    reader = PredictionLogReader(folder, bundle.manifest.schema_, now_s=time.time() + LATER_S)
    return pa.Table.from_batches(reader.batches(columns)).to_pylist()


def stored(folder: Path, kind: str = REQUESTS) -> list[dict[str, Any]]:
    """The rows of all files of a kind."""
    files = parquet_files(folder / kind) if any((folder / kind).rglob("*.parquet")) else ()
    return [row for file in files for row in pa.parquet.read_table(file).to_pylist()]


def test_a_ranking_is_logged_with_its_answer_and_the_labels_that_come_later(
    serve_logging: LoggingServer, request_: Request, bundle: Bundle, tmp_path: Path
) -> None:
    http = serve_logging()
    answer = rank(http, request_, "first")
    assert feedback(http, {"request_id": "first", "positives": [2]}).json() == {"accepted": 1}
    wait(lambda: logged(http) == 1 and any((tmp_path / "log" / FEEDBACK).rglob("*.parquet")))
    schema = bundle.manifest.schema_
    features = [*schema.context.names, *schema.candidate.names]
    rows = rows_of(tmp_path / "log", bundle, [*features, schema.label.column])
    assert [row.pop(schema.label.column) for row in rows] == [
        float(i == 2) for i in range(len(request_.rows))
    ]
    assert rows == request_.rows
    (row,) = stored(tmp_path / "log")
    assert row["log.request_id"] == "first"
    assert row["log.path"] == answer["path"]
    scores = row["log.scores"]
    assert [scores[i] for i in answer["order"]] == pytest.approx(answer["scores"])


def test_labels_of_a_call_have_a_limit_of_bytes_and_a_thousand_requests_fit(
    logging_http: httpx.Client,
) -> None:
    """1 MiB of them was parsed in the event loop for 111 ms, and then was too much for the pipe."""
    http = logging_http
    items = [{"request_id": f"{i:036}", "positives": [i % 23, 5]} for i in range(1000)]
    assert feedback(http, {"feedback": items}).json() == {"accepted": 1000}
    items = [{"request_id": "a", "labels": [0] * 4096} for _ in range(20)]
    assert feedback(http, {"feedback": items}).status_code == 413


def test_plain_rows_are_logged_one_each(
    serve_logging: LoggingServer, request_: Request, bundle: Bundle, tmp_path: Path
) -> None:
    http = serve_logging()
    content = orjson.dumps({"instances": request_.rows})
    assert http.post("/v1/predict", content=content, headers={"X-Request-Id": "p"}).status_code == 200
    labels = [0.0] * (len(request_.rows) - 1) + [1.0]
    feedback(http, {"feedback": [{"request_id": "p", "labels": labels}]})
    wait(lambda: logged(http) == 1 and any((tmp_path / "log" / FEEDBACK).rglob("*.parquet")))
    label = bundle.manifest.schema_.label.column
    rows = rows_of(tmp_path / "log", bundle, ["item", label])
    assert [row["item"] for row in rows] == request_.columns["item"]
    assert [row[label] for row in rows] == labels


def known_rows(request: Request, bundle: Bundle) -> list[dict[str, Any]]:
    """The rows of a request with values without an id as missing."""
    known = {
        f.name: set(values.to_pylist())
        for f in bundle.manifest.schema_.categorical
        if (values := bundle.encoder.vocabulary(f).values) is not None
    }

    def value(name: str, found: Any) -> Any:
        if name not in known:
            return pytest.approx(found, rel=1e-6)
        if isinstance(found, list):
            return [each if each in known[name] else None for each in found]
        return found if found in known[name] else None

    return [{name: value(name, found) for name, found in row.items()} for row in request.rows]


def test_requests_of_the_inference_protocol_are_logged_as_the_values_of_their_ids(
    bundle_dir: Path,
    bundle: Bundle,
    request_: Request,
    tensors: Callable[[Request], Arrays],
    tmp_path: Path,
) -> None:
    """Over HTTP and over gRPC."""
    inputs = [
        {
            "name": name,
            "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in tensors(request_).items()
    ]
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000, "grpc_port": 0}
    log = {"prediction_log": tmp_path / "log", "prediction_log_flush_s": 0.05}
    with (
        start(settings | log) as child,
        httpx.Client(base_url=child.url) as http,
        grpc.insecure_channel(str(child.grpc)) as channel,
    ):
        answer = http.post("/v2/models/dlrm/infer", json={"inputs": inputs, "id": "by-http"})
        assert answer.status_code == 200, answer.text
        scores = {"by-http": answer.json()["outputs"][0]["data"]}
        asked = infer_request(tensors(request_), id="by-grpc")
        scores["by-grpc"] = probabilities(Stub(channel).infer(asked)).tolist()
        wait(lambda: logged(http) == 2)
    schema = bundle.manifest.schema_
    names = [*schema.context.names, *schema.candidate.names]
    assert rows_of(tmp_path / "log", bundle, names) == 2 * known_rows(request_, bundle)
    # the context that a request's rows repeat is stored once
    by_http, by_grpc = sorted(stored(tmp_path / "log"), key=lambda row: row["log.request_id"], reverse=True)
    for row, request_id in ((by_http, "by-http"), (by_grpc, "by-grpc")):
        assert row["log.request_id"] == request_id
        assert row["log.scores"] == pytest.approx(scores[request_id])


def test_left_out_and_hashed_features_are_not_in_any_file(
    serve_logging: LoggingServer, request_: Request, bundle: Bundle, tmp_path: Path
) -> None:
    http = serve_logging(prediction_log_leave_out="city", prediction_log_hash="user_id,recent_items")
    rank(http, request_, "one")
    rank(http, request_, "two")
    wait(lambda: logged(http) == 2)
    rows = rows_of(tmp_path / "log", bundle, ["city", "user_id", "recent_items", "platform"])
    user = request_.context["user_id"]
    assert {row["city"] for row in rows} == {None}
    assert {row["platform"] for row in rows} == {request_.context["platform"]}
    (hashed,) = {row["user_id"] for row in rows}
    assert len(hashed) == 16
    assert hashed != user
    assert len(rows[0]["recent_items"]) == len(request_.context["recent_items"])
    for file in (tmp_path / "log").rglob("*.parquet"):
        assert user.encode() not in file.read_bytes()
    assert (tmp_path / "log" / "hash.key").stat().st_mode & 0o77 == 0


def test_the_python_client_gives_feedback(
    logging_http: httpx.Client, log_folder: Path, request_: Request
) -> None:
    with polyrec.Client(str(logging_http.base_url), token=FEEDBACK_TOKEN) as client:
        ranking = client.rank(request_.context, request_.candidates)
        assert ranking.request_id is not None
        client.feedback(ranking.request_id, positives=ranking.order[:1])
        with pytest.raises(polyrec.PredictionError, match="give either"):
            client.feedback(ranking.request_id)

    def labels() -> list[dict[str, Any]]:
        return [row for row in stored(log_folder, FEEDBACK) if row["request_id"] == ranking.request_id]

    wait(lambda: bool(labels()))
    (label,) = labels()
    assert (label["row"], label["label"]) == (ranking.order[0], 1.0)


def test_feedback_needs_its_right(logging_http: httpx.Client) -> None:
    item = {"request_id": "r", "positives": [0]}
    assert feedback(logging_http, item, None).status_code == 401
    assert feedback(logging_http, item, OTHER_TOKEN).status_code == 403
    assert feedback(logging_http, item, FEEDBACK_TOKEN).status_code == 200


def test_a_row_may_be_written_as_a_number_with_a_fraction_of_zero() -> None:
    """3.0 is an integer in JSON, as encoders of languages without integers write it."""
    assert FeedbackItem.model_validate({"request_id": "r", "positives": [3.0, 1, 3]}).rows()[0] == [1, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"request_id": "r"}, "give either 'positives' or 'labels'"),
        ({"request_id": "r", "positives": [-1]}, "positives"),
        ({"request_id": "r", "positives": ["0"]}, "positives.0: Input should be a valid integer"),
        ({"request_id": "r", "positives": [True]}, "positives.0: Input should be a valid integer"),
        ({"request_id": "r", "positives": [2.5]}, "positives.0: Input should be a valid integer"),
        ({"request_id": "r", "positives": [1e300]}, "positives.0: Input should be less than 4096"),
        ({"request_id": "r", "labels": [2]}, "labels"),
        ({"request_id": "r", "labels": [True]}, "labels.0: Input should be a valid number"),
        ({"request_id": "r", "labels": ["1"]}, "labels.0: Input should be a valid number"),
        ({"request_id": "a b", "positives": [0]}, "request_id"),
        ({"request_id": "r" * 129, "positives": [0]}, "request_id"),
        ({"request_id": "r", "positives": [0], "positive": [0]}, "positive"),
        ({"request_id": "r", "positives": [0], "labels": [0], "x" * 999: 0}, "unknown key 'xxxxxx"),
        ({"feedback": [{"request_id": "r", "positives": [0]}], "by": 1}, "unknown key 'by'; known: feedback"),
        ({"feedback": []}, "feedback"),
        ({"feedback": [{"request_id": "r", "positives": [0]}] * 1001}, "feedback"),
        ([], "dict"),
    ],
)
def test_malformed_feedback_is_rejected(logging_http: httpx.Client, content: Any, message: str) -> None:
    answer = feedback(logging_http, content)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_labels_are_to_be_sent_again_while_the_server_loads(client: Any, plan: Plan, tmp_path: Path) -> None:
    """A server that starts again has no log yet, which is no reason to give up."""
    engine = Engine()
    engine.access = Access(engine.metrics, file=write_tokens(tmp_path))
    loading = type(client)(client.runner, create_app(engine))
    body, allowed = b'{"request_id": "r", "positives": [0]}', {"authorization": f"Bearer {FEEDBACK_TOKEN}"}
    answer = loading.post("/v1/feedback", body, allowed)
    assert (answer.status_code, "still loading" in answer.json()["error"]) == (503, True)
    engine.load(plan)
    answer = loading.post("/v1/feedback", body, allowed)
    assert (answer.status_code, "no prediction log" in answer.json()["error"]) == (404, True)
    engine.close()


MANY_KEYS = {f"key{i}": 0 for i in range(4000)}


@pytest.mark.parametrize("item", [{"labels": [2] * 4000}, {"positives": [-1] * 4000}, MANY_KEYS])
def test_only_the_first_error_of_feedback_is_looked_for(item: dict[str, Any]) -> None:
    """One for each of 60,000 labels would hold the event loop for 0.2 s."""
    with pytest.raises(ValidationError) as raised:
        FeedbackList.model_validate({"feedback": [{"request_id": "r"} | item] * 15})
    assert raised.value.error_count() == 1


def test_a_full_disk_loses_lines_of_the_log_and_nothing_else(
    serve_logging: LoggingServer, request_: Request, tmp_path: Path
) -> None:
    http = serve_logging()
    # a file where the folder of the hours would be: nothing can be written, also by root
    (tmp_path / "log" / REQUESTS).write_text("")
    for i in range(3):
        rank(http, request_, f"r{i}")
    wait(lambda: logged(http, "lost") == 3)
    wait(lambda: events(http) == ["records_lost"])
    (tmp_path / "log" / REQUESTS).unlink()
    rank(http, request_, "last")
    wait(lambda: logged(http) == 1)
    wait(lambda: events(http) == ["records_lost", "records_written"])


def test_a_dead_writer_costs_lines_of_the_log_until_another_is_started(
    serve_logging: LoggingServer, request_: Request
) -> None:
    http = serve_logging()
    rank(http, request_)
    wait(lambda: logged(http) == 1)
    for writer in _writers():
        os.kill(writer, 9)

    def asked() -> tuple[float, float]:
        rank(http, request_)
        return logged(http, "dropped"), logged(http)

    wait(lambda: asked()[0] > 0)
    wait(lambda: asked()[1] > 1)


def test_a_value_that_no_file_holds_costs_its_own_request_only(
    logging_http: httpx.Client, log_folder: Path, request_: Request
) -> None:
    http = logging_http
    odd = {"candidates": request_.candidates | {"position": [2**70] * len(request_.rows)}}
    assert http.post("/v1/rank", content=json.dumps(odd)).status_code in (200, 422)
    rank(http, request_, "after-it")
    wait(lambda: any(row["log.request_id"] == "after-it" for row in stored(log_folder)))


def test_rules_may_be_changed_and_several_servers_begin_one_log(
    serve_logging: LoggingServer, request_: Request, tmp_path: Path
) -> None:
    first = serve_logging()
    rules = tmp_path / "log" / "log.json"
    rules.write_text(json.dumps(json.loads(rules.read_text()) | {"window_s": 7200.0}))
    second = serve_logging()
    for http in (first, second):
        rank(http, request_)
        wait(lambda http=http: logged(http) == 1)  # type: ignore[misc]
    assert json.loads(rules.read_text())["window_s"] == 7200


def _writers() -> list[int]:
    """Process ids of the writers that descend from this process."""
    parents: dict[int, int] = {}
    writers = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
            parents[pid] = parent
            if b"polyrec.server.prediction_log.writer" in (stat.parent / "cmdline").read_bytes():
                writers.append(pid)
        except OSError:
            continue  # it ended meanwhile

    def descends(pid: int | None) -> bool:
        return pid == os.getpid() or (pid in parents and descends(parents[pid]))

    return [pid for pid in writers if descends(pid)]


def test_a_log_of_another_schema_is_not_continued(serve_logging: LoggingServer, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.json").write_text('{"for_schema": "hotels", "features": {}}')
    with pytest.raises(StartFailed):
        serve_logging()
