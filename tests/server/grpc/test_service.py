"""The methods of the inference service, by messages of ours, against the protocol over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest

from polyrec.loadtest.drivers.server_pages import MetricSamples
from polyrec.models.bundle.bundle import Bundle
from polyrec.server.app.served_model import version_number
from polyrec.server.child import ServerProcess
from polyrec.server.grpc.messages import SERVICE, message_class
from tests.forking import start
from tests.server.grpc.conftest import Stub, infer_request, probabilities
from tests.server.http.test_oip import binary_request, ranking_arrays

Tensors = Callable[[Any], dict[str, Any]]
Refused = Callable[..., Any]
Code = grpc.StatusCode
INFER = f"/{SERVICE}/ModelInfer"


@pytest.fixture
def page(grpc_server: ServerProcess) -> Iterator[httpx.Client]:
    """The same server's HTTP port."""
    with httpx.Client(base_url=grpc_server.url, timeout=30, verify=False) as client:
        yield client


def counts(page: httpx.Client, name: str = "polyrec_requests_total", **labels: str) -> float:
    return MetricSamples(page.get("/metrics").text).total(name, **labels)


def eventually(true: Callable[[], bool]) -> None:
    """Waits until it is so, a minute at most."""
    give_up_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_probabilities_are_the_bundles(
    stub: Stub, request_: Any, tensors: Tensors, offline: Callable[[Any], Any], raw: bool
) -> None:
    response = stub.infer(infer_request(tensors(request_), raw, id="q1"))
    np.testing.assert_allclose(probabilities(response), offline(request_), atol=1e-5)
    assert (response.model_name, response.id) == ("trivago", "q1")
    assert bool(response.raw_output_contents) == raw


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize("ranked", [True, False], ids=["ranking", "plain"])
def test_answers_equal_those_over_http_bit_by_bit(
    stub: Stub, page: httpx.Client, requests: list[Any], tensors: Tensors, ranked: bool, raw: bool
) -> None:
    for request in requests[:12]:
        arrays = tensors(request)
        if ranked:
            arrays = ranking_arrays(arrays, request.schema)
        body, headers = binary_request(arrays)
        over_http = page.post("/v2/models/dlrm/infer", content=body, headers=headers).json()
        response, call = stub.method("ModelInfer").with_call(infer_request(arrays, raw))
        expected = np.array(over_http["outputs"][0]["data"], np.float32)
        np.testing.assert_array_equal(probabilities(response), expected)
        assert response.model_version == over_http["model_version"]
        parameters = response.parameters
        assert parameters["path"].string_param == over_http["parameters"]["path"]
        assert parameters["degraded"].bool_param == over_http["parameters"]["degraded"]
        assert parameters["quality"].double_param == over_http["parameters"]["quality"]
        assert set(parameters) == set(over_http["parameters"])
        trailing = dict(call.trailing_metadata())
        assert trailing["x-polyrec-path"] == over_http["parameters"]["path"]
        assert trailing["x-polyrec-degraded"] == "false"
        assert float(trailing["x-polyrec-path-quality"]) == over_http["parameters"]["quality"]


def test_calls_are_counted_as_requests_of_the_protocol(
    stub: Stub, page: httpx.Client, request_: Any, tensors: Tensors, refused: Refused
) -> None:
    rows = request_.table.num_rows
    before = [counts(page, endpoint="infer", outcome=o) for o in ("ok", "invalid")]
    answered = counts(page, "polyrec_rows_total", endpoint="infer", outcome="ok")
    inferences = stub.ask("ModelStatistics", name="dlrm").model_stats[0].inference_count
    stub.infer(infer_request(tensors(request_)))
    refused(stub.infer, infer_request({}))
    assert [counts(page, endpoint="infer", outcome=o) for o in ("ok", "invalid")] == [b + 1 for b in before]
    assert counts(page, "polyrec_rows_total", endpoint="infer", outcome="ok") == answered + rows
    after = stub.ask("ModelStatistics", name="dlrm").model_stats[0]
    assert after.inference_count == inferences + rows
    assert after.inference_stats.fail.count >= 1


def test_documents_say_the_same_as_over_http(stub: Stub, page: httpx.Client, bundle: Bundle) -> None:
    version = version_number(bundle.manifest.version)
    assert stub.ask("ServerLive").live
    assert stub.ask("ServerReady").ready
    for named in ({"name": "dlrm"}, {"name": bundle.manifest.name, "version": version}):
        assert stub.ask("ModelReady", **named).ready
        metadata = stub.ask("ModelMetadata", **named)
        over_http = page.get("/v2/models/dlrm").json()
        assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
            (t["name"], t["datatype"], t["shape"]) for t in over_http["inputs"]
        ]
        assert (metadata.platform, list(metadata.versions)) == (over_http["platform"], [version])
        config = stub.ask("ModelConfig", **named).config
        assert config.max_batch_size == page.get("/v2/models/dlrm/config").json()["max_batch_size"]
        assert "context.sparse" in config.parameters["ranking_inputs"].string_value
    server = stub.ask("ServerMetadata")
    assert {"name": server.name, "version": server.version, "extensions": list(server.extensions)} == (
        page.get("/v2").json()
    )
    (entry,) = stub.ask("RepositoryIndex", ready=True).models
    assert (entry.name, entry.version, entry.state) == (bundle.manifest.name, version, "READY")
    assert stub.ask("ModelStatistics").model_stats[0].name == bundle.manifest.name


def test_every_answer_has_the_id_of_its_request(
    stub: Stub, request_: Any, tensors: Tensors, refused: Refused
) -> None:
    request = infer_request(tensors(request_))
    for metadata in ((), (("x-request-id", "mine"),)):
        _, call = stub.method("ModelInfer").with_call(request, metadata=metadata)
        error = refused(stub.infer, infer_request({}), metadata=metadata)
        ids = [dict(c.trailing_metadata())["x-request-id"] for c in (call, error)]
        assert ids == ["mine", "mine"] if metadata else len(set(ids)) == 2


def test_an_unknown_model_is_not_ready_and_has_no_documents(stub: Stub, refused: Refused) -> None:
    for named in ({"name": "other"}, {"name": "dlrm", "version": "9"}):
        assert not stub.ask("ModelReady", **named).ready
        for method in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
            error = refused(stub.ask, method, **named)
            assert error.code() is Code.NOT_FOUND, method
    error = refused(stub.infer, infer_request({}, model_name="other"))
    assert (error.code(), error.details()) == (
        Code.NOT_FOUND,
        "unknown model 'other'; this server has 'trivago'",
    )


def test_models_are_not_loaded_and_unsupported_methods_are_unimplemented(
    stub: Stub, refused: Refused
) -> None:
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        assert refused(stub.ask, method, model_name="dlrm").code() is Code.PERMISSION_DENIED
    for method in ("SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "LogSettings", "TraceSetting"):
        assert refused(stub.ask, method).code() is Code.UNIMPLEMENTED


def test_bad_requests_name_the_offense(stub: Stub, request_: Any, tensors: Tensors, refused: Refused) -> None:
    arrays = tensors(request_)

    def offense(raw: bool = True, code: Any = Code.INVALID_ARGUMENT, **other: Any) -> str:
        error = refused(stub.infer, infer_request(arrays | other, raw))
        assert error.code() is code
        return str(error.details())

    for raw in (True, False):
        assert "input 'dense' has shape" in offense(raw, dense=arrays["dense"][:, :1])
        assert "feature 'user_id': id 999999 is outside" in offense(
            raw, sparse=np.full_like(arrays["sparse"], 999_999)
        )
        assert "not a finite number" in offense(raw, dense=np.full_like(arrays["dense"], np.nan))
        assert "unknown input 'x" in offense(raw, **{"x" * 200: arrays["dense"]})
        many = {n: np.concatenate([a] * 5000) for n, a in arrays.items() if n in ("dense", "sparse")}
        over = refused(stub.infer, infer_request(many, raw))
        assert over.code() in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
    request = infer_request(arrays)
    request.raw_input_contents.pop()
    assert "all inputs are raw, or none" in refused(stub.infer, request).details()
    request = infer_request(arrays)
    request.raw_input_contents[0] += b"\0"
    assert "bytes of raw_input_contents" in refused(stub.infer, request).details()
    request = infer_request(arrays)
    request.inputs[0].contents.fp32_contents.append(1)
    assert "has contents and raw_input_contents" in refused(stub.infer, request).details()
    request = infer_request(arrays, raw=False)
    request.inputs[0].contents.fp32_contents.append(1)
    assert "values in fp32_contents" in refused(stub.infer, request).details()
    request = infer_request(arrays)
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])
    assert "is given twice" in refused(stub.infer, request).details()
    request = infer_request(arrays)
    request.outputs.add(name="score")
    assert "unknown output 'score'" in refused(stub.infer, request).details()


def test_a_message_that_is_not_one_is_an_invalid_argument(stub: Stub, refused: Refused) -> None:
    for method, message in (("ModelInfer", b"\xff\xff"), ("ModelMetadata", b"\x0a\x05a")):
        call = stub.channel.unary_unary(f"/{SERVICE}/{method}")
        error = refused(call, message, timeout=30)
        assert error.code() is Code.INVALID_ARGUMENT
        assert "is not a Model" in error.details()


def test_a_call_without_a_message_is_an_invalid_argument(stub: Stub, refused: Refused) -> None:
    for method in ("ModelInfer", "ServerLive"):
        error = refused(stub.channel.stream_unary(f"/{SERVICE}/{method}"), iter(()), timeout=30)
        assert (error.code(), error.details()) == (Code.INVALID_ARGUMENT, "the call has no message")


def test_options_are_metadata_or_parameters(
    stub: Stub, request_: Any, tensors: Tensors, refused: Refused
) -> None:
    arrays = tensors(request_)
    request = infer_request(arrays)
    for name, value, says in (
        ("x-latency-budget-ms", "soon", "header X-Latency-Budget-Ms is 'soon'"),
        ("x-polyrec-priority", "-1", "header X-Polyrec-Priority is '-1'"),
        ("x-polyrec-quality", "good", "it is 'required' or 'any'"),
    ):
        error = refused(stub.infer, request, metadata=((name, value),))
        assert error.code() is Code.INVALID_ARGUMENT
        assert says in error.details()
    error = refused(stub.infer, request, metadata=(("x-latency-budget-ms", "0.000001"),))
    assert (error.code(), "1e-06 ms passed" in error.details()) == (Code.DEADLINE_EXCEEDED, True)
    options = (("x-polyrec-priority", "1"), ("x-polyrec-quality", "required"))
    assert probabilities(stub.infer(request, metadata=options)).size == request_.table.num_rows

    for name, field, value, says in (
        ("timeout", "int64_param", -1, "parameter 'timeout' is -1"),
        ("timeout", "string_param", "1", "parameter 'timeout' is not an integer"),
        ("priority", "uint64_param", 2**40, "parameter 'priority' is"),
        ("quality", "string_param", "good", "parameter 'quality' is 'good'"),
        ("quality", "bool_param", True, "parameter 'quality' is not a string"),
    ):
        asked = infer_request(arrays)
        setattr(asked.parameters[name], field, value)
        error = refused(stub.infer, asked)
        assert (error.code(), says in error.details()) == (Code.INVALID_ARGUMENT, True), error.details()
    asked = infer_request(arrays)
    asked.parameters["timeout"].int64_param = 1
    assert "0.001 ms passed" in refused(stub.infer, asked).details()
    asked.parameters["timeout"].int64_param = 0
    asked.parameters["quality"].string_param = "required"
    asked.parameters["sequence_id"].int64_param = 7
    assert probabilities(stub.infer(asked)).size == request_.table.num_rows


@pytest.fixture
def stalled(bundle_dir: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """A server whose only lane has stopped, so that queries wait."""
    settings = {"bundle": bundle_dir, "lane": "process", "drain_grace_s": 0, "grpc_port": 0}
    budgets = {"default_budget_ms": 60_000, "max_budget_ms": 600_000, "drain_timeout_s": 0.2}
    with start(settings | budgets) as child, httpx.Client(base_url=child.url) as page:
        (lane,) = page.get("/v1/paths").json()["lanes"]
        os.kill(lane["pid"], signal.SIGSTOP)
        yield child, page
        with suppress(ProcessLookupError):  # it ended with its server
            os.kill(lane["pid"], signal.SIGCONT)


def test_a_canceled_call_cancels_its_query(
    stalled: tuple[ServerProcess, httpx.Client], request_: Any, tensors: Tensors
) -> None:
    server, page = stalled
    assert server.grpc is not None
    with grpc.insecure_channel(server.grpc) as channel:
        method = Stub(channel).method("ModelInfer")
        waiting = [method.future(infer_request(tensors(request_)))]
        # once the first is in the lane, the others cannot join its batch
        eventually(lambda: counts(page, "polyrec_in_flight_queries") == 1)
        waiting += [method.future(infer_request(tensors(request_))) for _ in range(2)]
        eventually(lambda: counts(page, "polyrec_queue_rows") >= 2 * request_.table.num_rows)
        for call in waiting:
            call.cancel()
        eventually(lambda: counts(page, endpoint="infer", outcome="cancelled") == 3)
        eventually(lambda: counts(page, "polyrec_queue_rows") == 0)


def test_the_deadline_of_a_call_is_its_budget(
    stalled: tuple[ServerProcess, httpx.Client], request_: Any, tensors: Tensors, refused: Refused
) -> None:
    server, page = stalled
    assert server.grpc is not None
    with grpc.insecure_channel(server.grpc) as channel:
        error = refused(Stub(channel).infer, infer_request(tensors(request_)), timeout=0.3)
        assert error.code() is Code.DEADLINE_EXCEEDED
        # on a busy machine the client's end of the call may come long before the server's own deadline
        ends = ("expired", "cancelled")
        eventually(lambda: sum(counts(page, endpoint="infer", outcome=end) for end in ends) == 1)


def test_waiting_calls_get_unavailable_when_the_server_stops(
    stalled: tuple[ServerProcess, httpx.Client], request_: Any, tensors: Tensors
) -> None:
    server, page = stalled
    assert server.grpc is not None
    with grpc.insecure_channel(server.grpc) as channel:
        waiting = Stub(channel).method("ModelInfer").future(infer_request(tensors(request_)))
        eventually(lambda: counts(page, "polyrec_queue_rows") >= 0 and counts(page, "polyrec_ready") == 1)
        eventually(lambda: page.get("/v1/paths").json()["routing"]["lanes"][0]["busy"])
        server.process.terminate()
        assert waiting.code() is Code.UNAVAILABLE
        assert waiting.details() == "the server is shutting down and could not answer; retry on another"
        assert server.process.wait(timeout=30) == 0


def test_calls_at_once_do_not_mix_their_answers(
    grpc_server: ServerProcess, requests: list[Any], tensors: Tensors, offline: Callable[[Any], Any]
) -> None:
    asked = requests[:40]
    kind = message_class("ModelInferRequest")
    answer = message_class("ModelInferResponse")

    async def scenario() -> list[Any]:
        assert grpc_server.grpc is not None
        async with grpc.aio.insecure_channel(grpc_server.grpc) as channel:
            call = channel.unary_unary(INFER, kind.SerializeToString, answer.FromString)
            spoiled = channel.unary_unary(INFER)
            honest = [call(infer_request(tensors(r), i % 2 == 0, id=str(i))) for i, r in enumerate(asked)]
            hostile = [spoiled(infer_request(tensors(r)).SerializeToString()[:-3]) for r in asked]
            for each in hostile[::2]:
                each.cancel()
            await asyncio.gather(*hostile, return_exceptions=True)
            return list(await asyncio.gather(*honest))

    for i, (request, response) in enumerate(zip(asked, asyncio.run(scenario()), strict=True)):
        assert response.id == str(i)
        np.testing.assert_allclose(probabilities(response), offline(request), atol=1e-5)


def test_a_request_reaches_the_model_that_it_names(
    bundle_dir: Path,
    shop_dir: Path,
    request_: Any,
    tensors: Tensors,
    offline: Callable[[Any], Any],
    refused: Refused,
) -> None:
    """Also by a stream, whose messages may name different models."""
    settings = {"plans": f"hotels={bundle_dir},shop={shop_dir}", "grpc_port": 0, "drain_grace_s": 0}
    fruit = {"dense": np.ones((2, 1), np.float32), "sparse": np.array([[3, 0], [3, 1]])}
    hotel = tensors(request_)
    with start(settings | {"default_budget_ms": 60_000}) as server, ExitStack() as opened:
        stub = Stub(opened.enter_context(grpc.insecure_channel(str(server.grpc))))
        page = opened.enter_context(httpx.Client(base_url=server.url, timeout=30))
        asked = [infer_request(fruit, model_name="shop"), infer_request(hotel, model_name="hotels")] * 2
        alone = [stub.infer(each) for each in asked]
        streamed = [each.infer_response for each in stub.method("ModelStreamInfer")(iter(asked))]
        for responses in (alone, streamed):
            assert [response.model_name for response in responses] == ["shop", "hotels"] * 2
            assert probabilities(responses[0]).size == 2
            np.testing.assert_allclose(probabilities(responses[1]), offline(request_), atol=1e-5)
        assert counts(page, endpoint="infer", outcome="ok", model="shop") == 4
        error = refused(stub.infer, infer_request(hotel, model_name="shop"))
        assert error.code() == Code.INVALID_ARGUMENT
        assert counts(page, endpoint="infer", outcome="invalid", model="shop") == 1
        error = refused(stub.infer, infer_request(hotel, model_name="books"))
        assert (error.code(), error.details()) == (
            Code.NOT_FOUND,
            "unknown model 'books'; this server has 'hotels', 'shop'",
        )
        # an unknown model counts for none, an unknown version for its model, as over HTTP
        error = refused(stub.infer, infer_request(fruit, model_name="shop", model_version="7"))
        assert error.code() == Code.NOT_FOUND
        (unknown,) = stub.method("ModelStreamInfer")(iter([infer_request(hotel, model_name="books")]))
        assert "unknown model 'books'" in unknown.error_message
        assert page.post("/v2/models/books/infer", json={}).status_code == 404
        assert page.post("/v2/models/shop/versions/7/infer", json={}).status_code == 404
        assert counts(page, endpoint="infer", outcome="invalid", model="shop") == 3
        assert counts(page, endpoint="infer", outcome="invalid", model="hotels") == 0
        assert [m.name for m in stub.ask("RepositoryIndex").models] == ["hotels", "shop"]
        assert [m.name for m in stub.ask("ModelStatistics").model_stats] == ["hotels", "shop"]
        assert stub.ask("ModelMetadata", name="shop").name == "shop"
        assert stub.ask("ModelConfig", name="shop").config.name == "shop"
        assert stub.ask("ModelReady", name="shop").ready
