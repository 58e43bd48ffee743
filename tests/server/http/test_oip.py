"""The inference protocol between unmodified third-party clients and a real server."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.schema import Schema
from polyrec.server.app.served_model import version_number
from polyrec.server.child import ServerProcess
from tests.server.conftest import AskWithKserve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

INFER = "/v2/models/dlrm/infer"


@pytest.fixture
def triton(server: ServerProcess) -> Iterator[Any]:
    """NVIDIA's client."""
    import tritonclient.http as triton

    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    yield client
    client.close()


def triton_inputs(arrays: dict[str, Any], binary: bool = True) -> list[Any]:
    import tritonclient.http as triton

    inputs = []
    for name, array in arrays.items():
        kind = "FP32" if array.dtype.kind == "f" else "INT64"
        inputs.append(triton.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    return inputs


def test_tritonclient_sees_a_live_ready_server_with_its_model(triton: Any, bundle: Bundle) -> None:
    name, version = bundle.manifest.name, version_number(bundle.manifest.version)
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("dlrm")
    assert triton.is_model_ready("dlrm", version)
    assert triton.is_model_ready(name, bundle.manifest.version)
    assert not triton.is_model_ready("dlrm", "9")
    assert not triton.is_model_ready("other")
    server = triton.get_server_metadata()
    assert server["name"] == "polyrec"
    assert {"binary_tensor_data", "statistics"} <= set(server["extensions"])
    for metadata in (triton.get_model_metadata(name), triton.get_model_metadata("dlrm", version)):
        assert metadata["name"] == name
        assert metadata["versions"] == [version]
        assert [i["name"] for i in metadata["inputs"]] == ["dense", "sparse"]
        assert metadata["outputs"] == [{"name": "probability", "datatype": "FP32", "shape": [-1]}]
    config = triton.get_model_config("dlrm")
    assert config["max_batch_size"] == 4096
    assert "dynamic_batching" in config
    lists = {f"{name}.{part}" for name in ("filters", "recent_items") for part in ("values", "lengths")}
    lists.add("group.lengths")
    ranking = {"context.sparse", "candidate.dense", "candidate.sparse", "context_lengths"}
    assert not any(i["optional"] for i in config["input"])
    assert {i["name"] for i in config["input"]} == {i["name"] for i in metadata["inputs"]}
    for key, names in (("ranking_inputs", ranking), ("optional_inputs", lists)):
        assert set(config["parameters"][key]["string_value"].split(", ")) == names
    (entry,) = triton.get_model_repository_index()
    assert (entry["name"], entry["version"], entry["state"]) == (name, version, "READY")


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("out", ["binary", "JSON", "unnamed"])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_the_bundles_probabilities(
    triton: Any,
    request_: Any,
    tensors: Callable[[Any], dict[str, Any]],
    offline: Callable[[Any], Any],
    binary_in: bool,
    out: str,
    compression: str | None,
) -> None:
    import tritonclient.http as http

    outputs = None
    if out != "unnamed":
        outputs = [http.InferRequestedOutput("probability", binary_data=out == "binary")]
    result = triton.infer(
        "dlrm",
        triton_inputs(tensors(request_), binary_in),
        outputs=outputs,
        request_id="q1",
        timeout=5_000_000,
        priority=1,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    np.testing.assert_allclose(result.as_numpy("probability"), offline(request_), atol=1e-5)
    response = result.get_response()
    assert response["id"] == "q1"
    assert response["parameters"]["path"] == "table@cpu"


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
def test_tritonclient_ranks_with_each_context_sent_once(
    triton: Any,
    http: httpx.Client,
    requests: list[Any],
    tensors: Callable[[Any], dict[str, Any]],
    offline: Callable[[Any], Any],
    binary_in: bool,
) -> None:
    queries = requests[:3]
    arrays = [ranking_arrays(tensors(r), r.schema) for r in queries]
    for request, inputs in zip(queries, arrays, strict=True):
        result = triton.infer("dlrm", triton_inputs(inputs, binary_in)).as_numpy("probability")
        plain = triton.infer("dlrm", triton_inputs(tensors(request), binary_in)).as_numpy("probability")
        body = {"context": request.context, "candidates": request.candidates}
        ranked = http.post("/v1/rank", json=body).json()
        by_rank = np.empty(len(plain))
        by_rank[ranked["order"]] = ranked["scores"]
        np.testing.assert_allclose(result, plain, atol=1e-6)
        np.testing.assert_allclose(result, by_rank, atol=1e-6)
    together = {name: np.concatenate([a[name] for a in arrays]) for name in arrays[0]}
    together["context_lengths"] = np.array([r.table.num_rows for r in queries], np.int64)
    result = triton.infer("dlrm", triton_inputs(together, binary_in)).as_numpy("probability")
    np.testing.assert_allclose(result, np.concatenate([offline(r) for r in queries]), atol=1e-5)


def ranking_arrays(plain: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """The plain tensors of a request whose rows have one context, with that context once."""
    roles: dict[str, list[int]] = {"context": [], "candidate": []}
    for i, f in enumerate(f for f in schema.categorical if not f.multi):
        roles[f.role].append(i)
    once = {
        "context.sparse": plain["sparse"][:1, roles["context"]],
        "candidate.dense": plain["dense"],
        "candidate.sparse": plain["sparse"][:, roles["candidate"]],
    }
    for f in schema.context.bags:
        lengths = plain[f"{f.name}.lengths"][:1]
        once |= {f"{f.name}.values": plain[f"{f.name}.values"][: lengths[0]], f"{f.name}.lengths": lengths}
    return {name: np.ascontiguousarray(array) for name, array in once.items()}


def test_tritonclient_statistics_count_requests(
    triton: Any, request_: Any, tensors: Callable[[Any], dict[str, Any]]
) -> None:
    def numbers() -> dict[str, Any]:
        (stats,) = triton.get_inference_statistics("dlrm")["model_stats"]
        return dict(stats)

    before = numbers()
    triton.infer("dlrm", triton_inputs(tensors(request_)))
    after = numbers()
    assert after["inference_count"] - before["inference_count"] == request_.table.num_rows
    assert after["execution_count"] - before["execution_count"] == 1
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][part]["count"] == before["inference_stats"][part]["count"] + 1
        assert after["inference_stats"][part]["ns"] > before["inference_stats"][part]["ns"]
    assert request_.table.num_rows in [b["batch_size"] for b in after["batch_stats"]]
    assert triton.get_inference_statistics()["model_stats"][0]["name"] == "trivago"


def test_tritonclient_raises_the_servers_errors(
    triton: Any, request_: Any, tensors: Callable[[Any], dict[str, Any]]
) -> None:
    import tritonclient.http as http
    from tritonclient.utils import InferenceServerException

    arrays = tensors(request_)
    with pytest.raises(InferenceServerException, match="unknown model 'other'") as caught:
        triton.infer("other", triton_inputs(arrays))
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="input 'dense' has shape"):
        triton.infer("dlrm", triton_inputs(arrays | {"dense": arrays["dense"][:, :1]}))
    with pytest.raises(InferenceServerException, match="input 'sparse' is missing"):
        triton.infer("dlrm", triton_inputs({"dense": arrays["dense"]}))
    with pytest.raises(InferenceServerException, match="unknown output 'score'"):
        triton.infer("dlrm", triton_inputs(arrays), outputs=[http.InferRequestedOutput("score")])
    with pytest.raises(InferenceServerException, match="feature 'user_id': id 999999 is outside") as caught:
        triton.infer("dlrm", triton_inputs(arrays | {"sparse": np.full_like(arrays["sparse"], 999_999)}))
    assert caught.value.status() == "422"
    once = ranking_arrays(arrays, request_.schema)
    with pytest.raises(InferenceServerException, match=r"input 'context\.sparse' is missing") as caught:
        triton.infer("dlrm", triton_inputs({n: a for n, a in once.items() if n != "context.sparse"}))
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="input 'context_lengths' adds up to 1; there are"):
        triton.infer("dlrm", triton_inputs(once | {"context_lengths": np.array([1])}))
    with pytest.raises(InferenceServerException, match="feature 'user_id': id 999999 is outside"):
        triton.infer("dlrm", triton_inputs(once | {"context.sparse": np.full((1, 5), 999_999)}))
    nan = arrays["dense"].copy()
    nan[0, 0] = np.nan
    with pytest.raises(InferenceServerException, match="feature 'price': value nan is not a finite number"):
        triton.infer("dlrm", triton_inputs(arrays | {"dense": nan}))
    with pytest.raises(InferenceServerException, match="no admin token"):
        triton.load_model("dlrm")
    with pytest.raises(InferenceServerException, match="no admin token"):
        triton.unload_model("dlrm")


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_kserve_client_gets_the_bundles_probabilities(
    server: ServerProcess,
    request_: Any,
    tensors: Callable[[Any], dict[str, Any]],
    offline: Callable[[Any], Any],
    binary_in: bool,
    named: bool,
    ask_with_kserve: AskWithKserve,
) -> None:
    answer = ask_with_kserve("rest", server.url, tensors(request_), binary_in, named)
    np.testing.assert_allclose(answer, offline(request_), atol=1e-5)


def test_a_version_may_stand_in_every_path(http: httpx.Client, bundle: Bundle) -> None:
    root = f"/v2/models/dlrm/versions/{bundle.manifest.version}"
    for page in ("", "/ready", "/config", "/stats"):
        assert http.get(root + page).status_code == 200
    body = json.dumps({"inputs": []})
    assert "is missing" in http.post(f"{root}/infer", content=body).json()["error"]


def binary_request(arrays: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32" if array.dtype.kind == "f" else "INT64",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    header = json.dumps({"inputs": inputs}).encode()
    body = header + b"".join(a.tobytes() for a in arrays.values())
    return body, {"inference-header-content-length": str(len(header))}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_whole_body_may_be_compressed_while_the_header_counts_what_is_inside(
    http: httpx.Client,
    request_: Any,
    tensors: Callable[[Any], dict[str, Any]],
    offline: Callable[[Any], Any],
    encoding: str,
) -> None:
    body, headers = binary_request(tensors(request_))
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    answer = http.post(INFER, content=packed, headers={**headers, "content-encoding": encoding})
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(answer.json()["outputs"][0]["data"], offline(request_), atol=1e-5)


def test_a_raw_body_is_answered_in_binary(http: httpx.Client, request_: Any, tensors: Any) -> None:
    arrays = {name: tensors(request_)[name] for name in ("dense", "sparse")}
    body, headers = binary_request(arrays)
    expected = http.post(INFER, content=body, headers=headers).json()["outputs"][0]["data"]
    raw = b"".join(a.tobytes() for a in arrays.values())
    answer = http.post(INFER, content=raw, headers={"inference-header-content-length": "0"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:length])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(answer.content) - length
    np.testing.assert_allclose(
        np.frombuffer(answer.content[length:], "<f4"), np.float32(expected), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30, "100000"])
def test_an_invalid_header_length_is_400(http: httpx.Client, length: str) -> None:
    answer = http.post(INFER, content=b"{}", headers={"inference-header-content-length": length})
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


def test_a_timeout_parameter_is_a_budget_in_microseconds(
    http: httpx.Client, request_: Any, tensors: Any
) -> None:
    inputs = [
        {
            "name": n,
            "shape": list(a.shape),
            "datatype": "FP32" if n == "dense" else "INT64",
            "data": a.tolist(),
        }
        for n, a in tensors(request_).items()
    ]
    late = http.post(INFER, json={"inputs": inputs, "parameters": {"timeout": 1}})
    assert late.status_code == 504
    assert "0.001 ms passed" in late.json()["error"]
    assert http.post(INFER, json={"inputs": inputs, "parameters": {"timeout": 0}}).status_code == 200


def test_a_large_response_is_compressed_if_accepted(http: httpx.Client, request_: Any, tensors: Any) -> None:
    arrays = {n: np.concatenate([a] * 30) for n, a in tensors(request_).items()}
    body, headers = binary_request(arrays)
    answer = http.post(INFER, content=body, headers={**headers, "accept-encoding": "deflate"})
    assert answer.headers["content-encoding"] == "deflate"
    assert len(answer.json()["outputs"][0]["data"]) == len(arrays["dense"])
