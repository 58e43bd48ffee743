"""Third-party clients, unmodified: NVIDIA's and KServe's."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.server.child import ServerProcess
from tests.server.conftest import AskWithKserve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Tensors = Callable[[Any], dict[str, Any]]


@pytest.fixture
def triton(grpc_server: ServerProcess) -> Iterator[Any]:
    """NVIDIA's client."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(grpc_server.grpc)
    yield client
    client.close()


def triton_inputs(arrays: dict[str, Any]) -> list[Any]:
    import tritonclient.grpc as triton

    inputs = []
    for name, array in arrays.items():
        kind = "FP32" if array.dtype.kind == "f" else "INT64"
        inputs.append(triton.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def test_tritonclient_sees_a_live_ready_server_with_its_model(triton: Any, bundle: Bundle) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("dlrm")
    assert not triton.is_model_ready("other")
    assert triton.get_server_metadata().name == "polyrec"
    metadata = triton.get_model_metadata("dlrm", as_json=True)
    assert metadata["name"] == bundle.manifest.name
    assert [i["name"] for i in metadata["inputs"][:2]] == ["dense", "sparse"]
    config = triton.get_model_config("dlrm").config
    assert config.max_batch_size == 4096
    assert config.dynamic_batching.preferred_batch_size
    assert {i.name for i in config.input} == {i["name"] for i in metadata["inputs"]}
    assert triton.get_model_repository_index().models[0].state == "READY"
    assert triton.get_inference_statistics("dlrm").model_stats[0].name == bundle.manifest.name


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_the_bundles_probabilities(
    triton: Any, request_: Any, tensors: Tensors, offline: Callable[[Any], Any], compression: str | None
) -> None:
    import tritonclient.grpc as client

    result = triton.infer(
        "dlrm",
        triton_inputs(tensors(request_)),
        outputs=[client.InferRequestedOutput("probability")],
        request_id="q1",
        timeout=5_000_000,
        client_timeout=30,
        priority=1,
        headers={"x-polyrec-quality": "required"},
        compression_algorithm=compression,
    )
    np.testing.assert_allclose(result.as_numpy("probability"), offline(request_), atol=1e-5)
    response = result.get_response(as_json=True)
    assert response["id"] == "q1"
    assert response["parameters"]["path"]["string_param"] == "table@cpu"


def test_tritonclient_streams_in_order_and_gets_errors_in_the_stream(
    triton: Any, requests: list[Any], tensors: Tensors, offline: Callable[[Any], Any]
) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    triton.start_stream(callback=lambda result, error: answers.put((result, error)))
    asked = [requests[i % len(requests)] for i in range(150)]
    for i, request in enumerate(asked):
        triton.async_stream_infer(
            "other" if i == 70 else "dlrm",
            triton_inputs(tensors(request)),
            request_id=str(i),
            enable_empty_final_response=True,
        )
    for i, request in enumerate(asked):
        result, error = answers.get(timeout=60)
        if i == 70:
            assert error.message().startswith("[StatusCode.NOT_FOUND] unknown model 'other'")
            continue
        assert error is None
        assert result.get_response().id == str(i)
        assert result.get_response().parameters["triton_final_response"].bool_param
        np.testing.assert_allclose(result.as_numpy("probability"), offline(request), atol=1e-5)
    triton.stop_stream()


def test_tritonclient_raises_the_servers_errors(triton: Any, request_: Any, tensors: Tensors) -> None:
    from tritonclient.utils import InferenceServerException

    arrays = tensors(request_)
    with pytest.raises(InferenceServerException, match="unknown model 'other'") as caught:
        triton.infer("other", triton_inputs(arrays))
    assert caught.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException, match="input 'sparse' is missing") as caught:
        triton.infer("dlrm", triton_inputs({"dense": arrays["dense"]}))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match="not allowed"):
        triton.load_model("dlrm")


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_kserves_client_gets_the_bundles_probabilities(
    grpc_server: ServerProcess,
    request_: Any,
    tensors: Tensors,
    offline: Callable[[Any], Any],
    raw: bool,
    ask_with_kserve: AskWithKserve,
) -> None:
    answer = ask_with_kserve("grpc", str(grpc_server.grpc), tensors(request_), raw, False)
    np.testing.assert_allclose(answer, offline(request_), atol=1e-5)
