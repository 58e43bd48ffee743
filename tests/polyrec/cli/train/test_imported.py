"""A checkpoint of another program, from import over calibration, profile and plan to answers from tiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from polyrec.cli.main import main
from polyrec.loadtest.traffic.feature_draws import bag_lengths
from polyrec.models.bundle.bundle import load_bundle
from polyrec.planner.deployment.bundle_contents import read_tables
from polyrec.planner.plan import load_plan
from polyrec.planner.profile import Memory, load_profile
from tests.forking import start
from tests.models.importers.foreign import Request, Shape, State, dlrm_forward, dlrm_state

SHAPE = Shape(dense=3, rows=(3000, 400, 60), width=16, bottom=(8,), top=(16,))
ROWS = 1500
QUICK = ["--seconds", "0.15", "--max-rows", "32", "--devices", "cpu", "--precisions", "fp32", "--no-front"]


@pytest.fixture(scope="module")
def state() -> State:
    return dlrm_state(np.random.default_rng(1), SHAPE)


@pytest.fixture(scope="module")
def request_rows() -> Request:
    """Rows whose ids are skewed, the hot ones anywhere in the tables."""
    random = np.random.default_rng(2)
    ids = []
    for rows in SHAPE.rows:
        popularity = random.permutation(1 / (1.0 + np.arange(rows)))
        ids.append([[int(i)] for i in random.choice(rows, ROWS, p=popularity / popularity.sum())])
    return Request(random.standard_normal((ROWS, SHAPE.dense)).astype(np.float32).astype(float), ids)


@pytest.fixture(scope="module")
def original(state: State, request_rows: Request) -> Any:
    return dlrm_forward(state, request_rows)


@pytest.fixture(scope="module")
def folder(
    state: State, request_rows: Request, original: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The checkpoint, data with labels that the model explains, and the bundle imported and calibrated."""
    folder = tmp_path_factory.mktemp("imported")
    torch.save(state, folder / "dlrm.pt")
    columns = {f"d{i}": request_rows.dense[:, i] for i in range(SHAPE.dense)}
    columns |= {f"c{i}": request_rows.sparse()[:, i] for i in range(len(SHAPE.rows))}
    columns["label"] = (np.random.default_rng(3).random(ROWS) < original).astype(np.int64)
    pq.write_table(pa.table(columns), folder / "clicks.parquet")
    imported = ["import", "dlrm", str(folder / "dlrm.pt"), "--out", str(folder / "imported")]
    assert main([*imported, "--single-valued"]) == 0
    calibrated = ["calibrate", str(folder / "imported"), "--data", str(folder / "clicks.parquet")]
    assert main([*calibrated, "--split", "all", "--out", str(folder / "calibrated")]) == 0
    return folder


def test_a_model_that_is_worse_than_a_constant_on_the_data_gives_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong order of the features or a missing transform otherwise shows in no message."""
    table = pq.read_table(folder / "clicks.parquet")
    opposite = pa.array(1 - table["label"].to_numpy())
    file = folder / "opposite.parquet"
    pq.write_table(table.set_column(table.column_names.index("label"), "label", opposite), file)
    out = str(folder / "recalibrated")
    for data, warned in ((file, True), (folder / "clicks.parquet", False)):
        asked = ["calibrate", str(folder / "imported"), "--data", str(data), "--split", "all"]
        assert main([*asked, "--out", out, "--replace"]) == 0
        assert ("worse than a constant" in capsys.readouterr().err) == warned


@pytest.mark.long
def test_a_calibrated_import_is_planned_in_tiers_and_answers_as_the_original(
    folder: Path, request_rows: Request, original: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = folder / "profile.json", folder / "plan.json"
    assert main(["profile", str(folder / "calibrated"), "--out", str(profile), *QUICK]) == 0
    (table,) = load_profile(profile).paths
    assert table.quality == load_bundle(folder / "calibrated").test_metrics["information"]
    memory = table.memory.total - sum(table.memory.tables.values()) // 2
    asked = ["plan", "--profile", str(profile), "--slo-ms", "1000", "--traffic", "rate=20,sizes=fixed:5"]
    assert main([*asked, "--memory", f"cpu={memory},disk=1GB", "--out", str(out)]) == 0
    capsys.readouterr()
    plan = load_plan(out)
    assert plan.placement is not None
    (placed,) = plan.placement.paths
    assert placed.tables["c0"].disk > 0
    assert placed.tables["c0"].host > 0
    rows = slice(0, 200)
    columns = {f"d{i}": request_rows.dense[rows, i].tolist() for i in range(SHAPE.dense)}
    columns |= {f"c{i}": request_rows.sparse()[rows, i].tolist() for i in range(len(SHAPE.rows))}
    quiet = {"drain_grace_s": 0, "default_budget_ms": 60_000, "tier_directory": folder}
    with start({"plan": out} | quiet) as server, httpx.Client(timeout=300) as http:
        answer = http.post(f"{server.url}/v1/predict", json={"columns": columns}).json()
        by_id = http.post(f"{server.url}/v2/models/dlrm/infer", json=_tensors(request_rows, 200)).json()
        counted = http.get(f"{server.url}/metrics").text
    assert answer["path"] == table.path.name
    assert answer["quality"] == pytest.approx(table.quality)
    np.testing.assert_allclose(answer["predictions"], original[rows], atol=1e-5)
    np.testing.assert_allclose(by_id["outputs"][0]["data"], original[rows], atol=1e-5)
    assert 'polyrec_embedding_read_bytes_total{tier="disk"}' in counted


def _tensors(request: Request, rows: int) -> dict[str, Any]:
    arrays = {"dense": request.dense[:rows], "sparse": request.sparse()[:rows]}
    return {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": "FP32" if name == "dense" else "INT64",
                "data": array.ravel().tolist(),
            }
            for name, array in arrays.items()
        ]
    }


def test_the_hottest_rows_come_first_and_quality_is_known(folder: Path, request_rows: Request) -> None:
    bundle = load_bundle(folder / "calibrated")
    assert 0 < bundle.test_metrics["information"] < 1
    assert bundle.test_metrics["rows"] == ROWS
    for i, rows in enumerate(SHAPE.rows):
        v = bundle.encoder.vocabularies[f"c{i}"]
        counted = np.bincount(request_rows.sparse()[:, i], minlength=rows)
        np.testing.assert_array_equal(v.counts, np.sort(counted)[::-1])
        np.testing.assert_array_equal(v.counts[v.rank_of_id], counted)
    assert not load_bundle(folder / "imported").encoder.vocabularies["c0"].counts.any()


def test_a_log_of_requests_gives_the_same_order(
    folder: Path, request_rows: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = request_rows.sparse()
    lines = [{f"c{i}": int(row[i]) for i in range(len(SHAPE.rows))} for row in sparse]
    log = folder / "requests.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    asked = ["calibrate", str(folder / "imported"), "--access-log", str(log), "--json"]
    assert main([*asked, "--out", str(folder / "by_log")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"], printed["metrics"]) == (ROWS, {})
    by_log, by_data = (load_bundle(folder / name) for name in ("by_log", "calibrated"))
    assert by_log.manifest.version == by_data.manifest.version
    assert by_log.test_metrics == {}


def test_lists_are_planned_with_the_lengths_of_the_log(folder: Path) -> None:
    assert main(["import", "dlrm", str(folder / "dlrm.pt"), "--out", str(folder / "lists")]) == 0
    bodies = [{"instances": [{"c0": [1, 2, 3], "c1": [4]}, {"c0": [5], "c1": []}]}] * 10
    (folder / "lists.jsonl").write_text("\n".join(map(json.dumps, bodies)))
    asked = ["calibrate", str(folder / "lists"), "--access-log", str(folder / "lists.jsonl")]
    assert main([*asked, "--out", str(folder / "lists_calibrated")]) == 0
    bundle = load_bundle(folder / "lists_calibrated")
    rows = {t: 64 * v.rows for t, v in bundle.encoder.vocabularies.items()}
    memory = Memory(tables=rows, fixed=1)
    assert read_tables(bundle.path, bundle.manifest, memory).lookups == pytest.approx(2.5)
    counted = bundle.manifest.counted_rows
    lengths = bag_lengths(bundle.manifest.schema_, bundle.encoder.vocabularies, counted)
    assert lengths == {"c0": 2.0, "c1": 0.5, "c2": 0.0}


def test_names_and_roles_are_given_by_a_schema(folder: Path, state: State, request_rows: Request) -> None:
    features = [("user", "context"), ("item", "candidate"), ("page", "candidate")]
    described = {
        "name": "shop",
        "dense": [
            {"name": n, "role": r}
            for n, r in (("age", "context"), ("price", "candidate"), ("rank", "candidate"))
        ],
        "categorical": [
            {"name": n, "role": r, "type": "integer", "cardinality": rows, "oov": "refuse"}
            for (n, r), rows in zip(features, SHAPE.rows, strict=True)
        ],
        "label": {"column": "clicked"},
        "split": {"rule": "hash", "columns": ["user"]},
    }
    (folder / "shop.yaml").write_text(json.dumps(described))
    data = pq.read_table(folder / "clicks.parquet")
    pq.write_table(
        data.rename_columns(["age", "price", "rank", "user", "item", "page", "clicked"]),
        folder / "shop.parquet",
    )
    by_import = ["import", "dlrm", str(folder / "dlrm.pt"), "--schema", str(folder / "shop.yaml")]
    assert main([*by_import, "--out", str(folder / "shop")]) == 0
    by_calibrate = ["calibrate", str(folder / "imported"), "--schema", str(folder / "shop.yaml")]
    by_calibrate += ["--data", str(folder / "shop.parquet"), "--out", str(folder / "shop_calibrated")]
    assert main(by_calibrate) == 0
    for name in ("shop", "shop_calibrated"):
        bundle = load_bundle(folder / name)
        schema = bundle.manifest.schema_
        assert [f.name for f in schema.context.categorical] == ["user"]
        batch = bundle.encoder.from_ids(
            request_rows.dense[:50].astype(np.float32), request_rows.sparse()[:50], {}
        )
        got = torch.sigmoid(bundle.model()(batch)).detach().numpy()
        expected = dlrm_forward(
            state, Request(request_rows.dense[:50], [rows[:50] for rows in request_rows.ids])
        )
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nothing.parquet"], "no data file 'nothing.parquet'"),
        (["--data", "DATA"], "no column 'split'"),
        (["--access-log", "nothing.jsonl"], "no access log 'nothing.jsonl'"),
        (["--access-log", "DATA", "--sample", "0.5"], "--sample applies to calibrating data"),
        (["--access-log", "DATA", "--schema", "trivago"], "does not describe this model"),
        ([], "--schema is missing; to calibrate a bundle, add --data FILE or --access-log FILE"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder / "clicks.parquet") if a == "DATA" else a for a in arguments]
    assert main(["calibrate", str(folder / "imported"), *given, "--out", str(folder / "not")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "not").exists()
