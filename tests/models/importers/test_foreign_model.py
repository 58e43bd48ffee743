from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.errors import BundleError, FeatureError
from polyrec.models.importers.checkpoint import CheckpointError
from polyrec.models.importers.dlrm import read_dlrm
from polyrec.models.importers.foreign_model import write_foreign_model
from polyrec.models.importers.torchrec import read_torchrec
from polyrec.models.runtimes import open_runtime, predict_rows
from polyrec.models.schema.schema import Categorical, Dense, Label, Schema, Split, load_schema
from tests.models.importers.foreign import (
    Request,
    Shape,
    State,
    dlrm_forward,
    dlrm_state,
    random_request,
    random_shape,
    torchrec_forward,
    torchrec_state,
)

SHAPE = Shape(dense=3, rows=(7, 4, 9), width=4, bottom=(6,), top=(5,))


@pytest.fixture(scope="module")
def state() -> State:
    return dlrm_state(np.random.default_rng(1), SHAPE)


@pytest.fixture(scope="module")
def checkpoint(state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parts") / "model.pt"
    torch.save(state, file)
    return file


@pytest.fixture(scope="module")
def bags(checkpoint: Path) -> Bundle:
    return write_foreign_model(read_dlrm(checkpoint), checkpoint.parent / "bags", "ads")


@pytest.fixture(scope="module")
def singles(checkpoint: Path) -> Bundle:
    return write_foreign_model(
        read_dlrm(checkpoint), checkpoint.parent / "singles", "ads", single_valued=True
    )


def test_features_are_numbered_candidates_with_the_tables_rows(bags: Bundle) -> None:
    schema = bags.manifest.schema_
    assert [d.name for d in schema.dense] == ["d0", "d1", "d2"]
    assert all(d.role == "candidate" and not d.transform for d in schema.dense)
    assert [(f.name, f.cardinality, f.pooling, f.role) for f in schema.categorical] == [
        ("c0", 7, "sum", "candidate"),
        ("c1", 4, "sum", "candidate"),
        ("c2", 9, "sum", "candidate"),
    ]
    assert (schema.label.column, schema.split.columns) == ("label", ("split",))


def test_rows_are_the_originals_without_special_ones(bags: Bundle, state: State) -> None:
    for i, n in enumerate(SHAPE.rows):
        vocabulary = bags.encoder.vocabularies[f"c{i}"]
        assert vocabulary.rows == vocabulary.size == n
        assert not vocabulary.specials
        np.testing.assert_array_equal(vocabulary.rank_of_id, np.arange(n))
        assert not vocabulary.counts.any()
    stored = torch.cat([t for t in bags.stage().state_dict().values() if t.dim() == 2])
    assert torch.equal(stored, torch.cat([state[f"emb_l.{i}.weight"] for i in range(3)]))


def test_the_manifest_says_where_the_model_comes_from(bags: Bundle) -> None:
    assert bags.manifest.name == "ads"
    assert bags.manifest.training["imported"] == {
        "format": "dlrm",
        "file": "model.pt",
        "tables": {"c0": "emb_l.0", "c1": "emb_l.1", "c2": "emb_l.2"},
    }


@pytest.mark.parametrize("value", [None, -1, 7, 2**63, 2**80])
def test_an_id_without_a_row_is_rejected(value: int | None, bags: Bundle, singles: Bundle) -> None:
    rest = {"d0": [1.0], "d1": [1.0], "d2": [1.0]}
    with pytest.raises(FeatureError, match="'c0'"):
        singles.encoder.block("candidate", {**rest, "c0": [value], "c1": [0], "c2": [0]}, 1)
    with pytest.raises(FeatureError, match="'c0'"):
        bags.encoder.block("candidate", {**rest, "c0": [[0, value]], "c1": [[0]], "c2": [[0]]}, 1)


def test_a_single_feature_left_out_is_rejected_and_a_list_left_out_is_empty(
    bags: Bundle, singles: Bundle, state: State
) -> None:
    columns = {"d0": [0.5], "d1": [0.25], "d2": [-1.0]}
    with pytest.raises(FeatureError, match="feature 'c1': a value is required"):
        singles.encoder.block("candidate", {**columns, "c0": [1], "c2": [1]}, 1)
    block = bags.encoder.block("candidate", {**columns, "c0": [[1, 1, 6]], "c2": [None]}, 1)
    assert block.bag_offsets.tolist() == [0, 3, 3, 3]


@pytest.mark.parametrize("single", [False, True])
def test_data_of_the_invented_columns_can_be_evaluated(
    single: bool, bags: Bundle, singles: Bundle, state: State, tmp_path: Path
) -> None:
    request = random_request(np.random.default_rng(3), SHAPE.rows, SHAPE.dense, 20, single)
    columns = {f"d{i}": request.dense[:, i] for i in range(SHAPE.dense)}
    columns |= {f"c{i}": [row[0] for row in r] if single else r for i, r in enumerate(request.ids)}
    pq.write_table(
        pa.table({**columns, "label": [0, 1] * 10, "split": ["test"] * 20}), tmp_path / "d.parquet"
    )
    bundle = singles if single else bags
    schema = bundle.manifest.schema_
    reader = open_data(tmp_path / "d.parquet", schema)
    with encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,)) as data:
        got = predict_rows(open_runtime("torch", bundle), data)
    np.testing.assert_allclose(got, dlrm_forward(state, request), atol=1e-5)


def test_large_tables_are_copied_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrec.models.importers.foreign_model._CHUNK", 8)
    shape = Shape(dense=1, rows=(5, 1, 4), width=3, bottom=(), top=())
    state = dlrm_state(np.random.default_rng(1), shape)
    torch.save(state, tmp_path / "model.pt")
    copied: list[int] = []
    bundle = write_foreign_model(
        read_dlrm(tmp_path / "model.pt"), tmp_path / "bundle", "ads", progress=copied.append
    )
    assert copied == [2, 2, 1, 1, 2, 2]
    request = random_request(np.random.default_rng(3), shape.rows, 1, 9, single=False)
    batch = bundle.encoder.from_ids(
        request.dense.astype(np.float32), np.empty((9, 0), np.int64), request.bags()
    )
    got = open_runtime("torch", bundle).predict(batch)
    np.testing.assert_allclose(got, dlrm_forward(state, request), atol=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e300])
def test_a_row_that_is_not_finite_is_rejected(state: State, tmp_path: Path, value: float) -> None:
    rows = state["emb_l.1.weight"].double()
    rows[2, 1] = value
    torch.save({**state, "emb_l.1.weight": rows}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"table emb_l\.1 holds a number that is not finite"):
        write_foreign_model(read_dlrm(tmp_path / "model.pt"), tmp_path / "bundle", "ads")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("name", "max_length", "offense"),
    [("my model", 256, "name: String should match"), ("ads", 0, "max_length: ")],
)
def test_a_schema_that_cannot_be_is_one_line(
    checkpoint: Path, tmp_path: Path, name: str, max_length: int, offense: str
) -> None:
    with pytest.raises(CheckpointError) as error:
        write_foreign_model(read_dlrm(checkpoint), tmp_path / "bundle", name, max_length=max_length)
    assert offense in str(error.value)
    assert "\n" not in str(error.value)


def test_a_width_beyond_the_limit_is_one_line(tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=(2,), width=4097, bottom=(), top=())
    torch.save(dlrm_state(np.random.default_rng(1), shape), tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"width: .* less than or equal to 4096"):
        write_foreign_model(read_dlrm(tmp_path / "model.pt"), tmp_path / "bundle", "ads")


def test_an_existing_bundle_stays_unless_replaced(bags: Bundle, checkpoint: Path) -> None:
    with pytest.raises(BundleError, match="--replace"):
        write_foreign_model(read_dlrm(checkpoint), bags.path, "other")
    assert load_bundle(bags.path).manifest.name == "ads"


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from([("dot", False), ("dot", True), ("cat", False)]))
def test_a_schema_puts_features_in_any_role_and_form(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: tuple[Any, bool]
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    state = dlrm_state(random, shape, *kind)
    folder = tmp_path_factory.mktemp("roles")
    torch.save(state, folder / "model.pt")
    schema = random_roles(random, shape)
    parts = read_dlrm(folder / "model.pt", *kind)
    bundle = write_foreign_model(parts, folder / "bundle", "unused", schema=schema)
    assert bundle.manifest.schema_ == schema
    request = random_request(random, shape.rows, shape.dense, 6, single=True)
    expected = dlrm_forward(state, request, *kind)
    np.testing.assert_allclose(predictions(bundle, request), expected, atol=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_the_inputs_of_a_cross_net_follow_their_roles(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    each = list(range(len(shape.rows)))
    state = torchrec_state(random, shape, each, (2, 3), random.integers(1, 6, len(each)).tolist())
    state["over_arch.model.1.weight"] /= 1 + state["over_arch.model.1.weight"].abs().sum() * 10
    folder = tmp_path_factory.mktemp("roles")
    torch.save(state, folder / "model.pt")
    parts = read_torchrec(folder / "model.pt")
    bundle = write_foreign_model(parts, folder / "bundle", "unused", schema=random_roles(random, shape))
    request = random_request(random, shape.rows, shape.dense, 6, single=True)
    expected = torchrec_forward(state, request, each)
    np.testing.assert_allclose(predictions(bundle, request), expected, atol=1e-5)


def random_roles(random: np.random.Generator, shape: Shape) -> Schema:
    """A schema of the model's features, with random roles, some as lists."""

    def role() -> Any:
        return ("context", "candidate")[int(random.integers(2))]

    categorical = tuple(
        Categorical(
            name=f"f{i}",
            role=role(),
            type="integer",
            cardinality=rows,
            oov="refuse",
            pooling=(None, "sum", "mean")[int(random.integers(3))],
        )
        for i, rows in enumerate(shape.rows)
    )
    dense = tuple(Dense(name=f"n{i}", role=role()) for i in range(shape.dense))
    split = Split(rule="hash", columns=("f0",))
    return Schema(name="ads", dense=dense, categorical=categorical, label=Label(column="label"), split=split)


def predictions(bundle: Bundle, request: Request) -> Any:
    """Predicts rows of single values, which lists hold one by one."""
    features = bundle.manifest.schema_.categorical
    singles = [i for i, f in enumerate(features) if not f.multi]
    ones = np.ones(len(request.dense), np.int64)
    bags = {f.name: (request.sparse()[:, i], ones) for i, f in enumerate(features) if f.multi}
    batch = bundle.encoder.from_ids(request.dense.astype(np.float32), request.sparse()[:, singles], bags)
    return open_runtime("torch", bundle).predict(batch)


def test_the_example_of_a_schema_in_the_documentation_fits_a_checkpoint(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "import.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "ads.yaml").write_text(example)
    shape = Shape(dense=2, rows=(4, 3), width=4, bottom=(6,), top=(5,))
    torch.save(dlrm_state(np.random.default_rng(0), shape), tmp_path / "dlrm.pt")
    schema = load_schema(tmp_path / "ads.yaml")
    bundle = write_foreign_model(read_dlrm(tmp_path / "dlrm.pt"), tmp_path / "b", "ads", schema=schema)
    assert bundle.manifest.schema_.context.names == ("age", "city")
