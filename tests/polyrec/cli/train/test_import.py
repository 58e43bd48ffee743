from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as triton

from polyrec.cli.train import import_
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.errors import PolyrecError
from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.models.importers.foreign import (
    Request,
    Shape,
    State,
    dlrm_forward,
    dlrm_state,
    random_request,
    torchrec_forward,
    torchrec_state,
)

SHAPE = Shape(dense=3, rows=(70, 4, 900), width=8, bottom=(16,), top=(16, 4))
ROWS = 40


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    import_.add_arguments(parser)
    return import_.run(parser.parse_args([str(a) for a in arguments]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


@pytest.fixture(scope="module")
def dlrm(folder: Path) -> State:
    """Saved as dlrm_s_pytorch.py saves it: counters, NumPy losses and the optimizer beside the weights."""
    state = dlrm_state(np.random.default_rng(1), SHAPE)
    saved = {
        "epoch": 0,
        "nepochs": 1,
        "nbatches": 10,
        "nbatches_test": 2,
        "iter": 10,
        "train_loss": np.float64(0.5),
        "test_acc": np.float64(0.8),
        "total_loss": np.array(5.0, np.float32),
        "state_dict": state,
        "opt_state_dict": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
    }
    torch.save(saved, folder / "dlrm.pt")
    return state


@pytest.fixture(scope="module")
def torchrec(folder: Path) -> State:
    state = torchrec_state(np.random.default_rng(2), SHAPE, (0, 1, 2), cross=(2, 4))
    state["over_arch.model.1.weight"] /= 100
    torch.save({f"model.{name}": tensor for name, tensor in state.items()}, folder / "torchrec.pt")
    return state


@pytest.fixture(scope="module")
def lists(dlrm: State, folder: Path) -> Iterator[ServerProcess]:
    """A server of the DLRM, its features multi-valued."""
    run("dlrm", folder / "dlrm.pt", "--out", folder / "lists", "--name", "ads")
    with start({"bundle": folder / "lists", "default_budget_ms": 60_000, "drain_grace_s": 0}) as server:
        yield server


def ask(server: ServerProcess, request: Request, single: bool) -> Any:
    """The probabilities, by an unmodified client of the Open Inference Protocol, in binary."""
    tensors = {"dense": request.dense.astype(np.float32)}
    if single:
        tensors["sparse"] = np.ascontiguousarray(request.sparse())
    else:
        for feature, (values, lengths) in request.bags().items():
            tensors |= {f"{feature}.values": values, f"{feature}.lengths": lengths}
    inputs = []
    for name, tensor in tensors.items():
        one = triton.InferInput(name, tensor.shape, "FP32" if tensor.dtype == np.float32 else "INT64")
        one.set_data_from_numpy(tensor, binary_data=True)
        inputs.append(one)
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        return client.infer("dlrm", inputs).as_numpy("probability")


def test_a_served_dlrm_gives_the_originals_probabilities(lists: ServerProcess, dlrm: State) -> None:
    request = random_request(np.random.default_rng(3), SHAPE.rows, SHAPE.dense, ROWS, single=False)
    np.testing.assert_allclose(ask(lists, request, False), dlrm_forward(dlrm, request), atol=1e-5)


def test_json_with_names_gives_the_same(lists: ServerProcess, dlrm: State) -> None:
    request = random_request(np.random.default_rng(4), SHAPE.rows, SHAPE.dense, ROWS, single=False)
    columns = {f"d{i}": request.dense[:, i].tolist() for i in range(SHAPE.dense)}
    columns |= {f"c{i}": ids for i, ids in enumerate(request.ids)}
    answer = httpx.post(f"{lists.url}/v1/predict", json={"columns": columns})
    got = answer.raise_for_status().json()["predictions"]
    np.testing.assert_allclose(got, dlrm_forward(dlrm, request), atol=1e-5)
    ranked = httpx.post(f"{lists.url}/v1/rank", json={"candidates": columns})
    assert ranked.raise_for_status().json()["order"] == np.argsort(-np.array(got), kind="stable").tolist()


@pytest.mark.parametrize("values", [[4], [-1], [0, None], [2**70]])
def test_an_id_without_a_row_is_422(lists: ServerProcess, values: list[int | None]) -> None:
    row = {"d0": 1, "d1": 1, "d2": 1, "c0": [0], "c1": values}
    answer = httpx.post(f"{lists.url}/v1/predict", json={"instances": [row]})
    assert answer.status_code == 422
    assert "c1" in answer.json()["error"]


def test_a_served_torchrec_model_with_one_id_a_feature(torchrec: State, folder: Path) -> None:
    run("torchrec", folder / "torchrec.pt", "--out", folder / "one", "--single-valued")
    request = random_request(np.random.default_rng(3), SHAPE.rows, SHAPE.dense, ROWS, single=True)
    with start(
        {"bundle": folder / "one", "runtime": "torch", "default_budget_ms": 60_000, "drain_grace_s": 0}
    ) as server:
        got = ask(server, request, True)
        instance = {"d0": 1, "d1": 1, "d2": 1, "c0": 0, "c2": 0}
        answer = httpx.post(f"{server.url}/v1/predict", json={"instances": [instance]})
    np.testing.assert_allclose(got, torchrec_forward(torchrec, request, (0, 1, 2)), atol=1e-5)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("feature 'c1': a value is required")


def test_the_result_is_printed_as_json(
    dlrm: State, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("dlrm", folder / "dlrm.pt", "--out", tmp_path / "b", "--json", "--max-length", 9)
    result = json.loads(capsys.readouterr().out)
    bundle = load_bundle(tmp_path / "b")
    assert result == {
        "bundle": str(tmp_path / "b"),
        "version": bundle.manifest.version,
        "bytes": bundle.bytes,
        "dense": 3,
        "interaction": "dot",
        "features": {
            "c0": {"from": "emb_l.0", "rows": 70},
            "c1": {"from": "emb_l.1", "rows": 4},
            "c2": {"from": "emb_l.2", "rows": 900},
        },
    }
    assert bundle.manifest.name == "dlrm"
    assert [f.max_length for f in bundle.manifest.schema_.categorical] == [9, 9, 9]


def test_the_table_of_each_feature_is_printed(
    torchrec: State, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ["--tables", "t_0,t_1,t_2", "--pooling", "mean"]
    run("torchrec", folder / "torchrec.pt", "--out", tmp_path / "b", *tables)
    first, shape, *features = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / 'b'}: torchrec table, version ")
    assert (
        shape == "3 dense features d0..., cross interaction of vectors of 8; each id below its table's rows:"
    )
    assert [line.split() for line in features] == [
        ["c0", "t_0", "70", "rows"],
        ["c1", "t_1", "4", "rows"],
        ["c2", "t_2", "900", "rows"],
    ]
    schema = load_bundle(tmp_path / "b").manifest.schema_
    assert [f.pooling for f in schema.categorical] == ["mean"] * 3


def test_long_names_keep_the_columns_straight(
    dlrm: State, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.yaml"
    names = ("a", "preferred_category", "b")
    lines = [
        f"  - {{name: {name}, type: integer, cardinality: {rows}, oov: refuse}}"
        for name, rows in zip(names, SHAPE.rows, strict=True)
    ]
    dense = "dense: [{name: x}, {name: y}, {name: z}]"
    end = ["label: {column: label}", "split: {rule: column, columns: [split]}"]
    schema.write_text("\n".join(["name: ads", dense, "categorical:", *lines, *end]))
    run("dlrm", folder / "dlrm.pt", "--schema", schema, "--out", tmp_path / "b")
    features = capsys.readouterr().out.splitlines()[2:]
    assert len({line.index("emb_l.") for line in features}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dlrm", "nothing.pt"], "no checkpoint 'nothing.pt'"),
        (["dlrm", "DLRM", "--interaction", "cat"], "it fits --interaction dot: say so"),
        (["dlrm", "DLRM", "--interact-itself"], "it fits --interaction dot: say so"),
        (["dlrm", "DLRM", "--name", "a b"], "name: String should match"),
        (["dlrm", "TORCHREC"], "no emb_l or bot_l or top_l in it; it is for: polyrec import torchrec"),
        (["torchrec", "DLRM"], "over_arch in it; it is for: polyrec import dlrm"),
        (["torchrec", "TORCHREC", "--tables", "t_0"], "--tables leaves out table t_1"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], message: str, dlrm: State, torchrec: State, folder: Path, tmp_path: Path
) -> None:
    files = {"DLRM": folder / "dlrm.pt", "TORCHREC": folder / "torchrec.pt"}
    with pytest.raises(PolyrecError) as error:
        run(*(files.get(a, a) for a in arguments), "--out", tmp_path / "b")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "b").exists()
