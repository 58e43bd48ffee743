from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.importers.checkpoint import CheckpointError
from polyrec.models.importers.foreign_model import write_foreign_model
from polyrec.models.importers.torchrec import read_torchrec
from polyrec.models.runtimes import open_runtime
from tests.models.executions import RUNTIMES
from tests.models.importers.foreign import (
    SPARSE,
    Request,
    Shape,
    State,
    quantized,
    random_request,
    random_shape,
    torchrec_forward,
    torchrec_state,
)

SHAPE = Shape(dense=3, rows=(7, 4, 9), width=4, bottom=(6,), top=(5,))
EACH = (0, 1, 2)
CROSS = "inter_arch.crossnet"


@pytest.fixture
def dot() -> State:
    return torchrec_state(np.random.default_rng(1), SHAPE, EACH)


@pytest.fixture
def dcn() -> State:
    return torchrec_state(np.random.default_rng(1), SHAPE, EACH, cross=(2, 3))


def save(folder: Path, saved: Any) -> Path:
    torch.save(saved, folder / "model.pt")
    return folder / "model.pt"


def error_of(folder: Path, saved: Any, *tables: str) -> str:
    """Returns the one line of the error for a checkpoint."""
    with pytest.raises(CheckpointError) as error:
        read_torchrec(save(folder, saved), tables)
    assert "\n" not in str(error.value)
    return str(error.value)


def predictions(bundle: Bundle, request: Request, runtime: str = "torch", single: bool = False) -> Any:
    dense = request.dense.astype(np.float32)
    sparse = request.sparse() if single else np.empty((len(dense), 0), np.int64)
    batch = bundle.encoder.from_ids(dense, sparse, {} if single else request.bags())
    return open_runtime(runtime, bundle).predict(batch)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    cross=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 80)),
    single=st.booleans(),
    means=st.sets(st.integers(0, 5)),
    whole=st.booleans(),
    shared=st.booleans(),
)
def test_the_bundle_gives_the_originals_probabilities(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    cross: tuple[int, int] | None,
    single: bool,
    means: set[int],
    whole: bool,
    shared: bool,
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    each = list(range(len(shape.rows)))
    features = sorted([*each, *random.integers(0, len(each), 2).tolist()]) if shared else each
    state = torchrec_state(random, shape, features, cross)
    # keeps the outputs of a crossing of crossings away from exactly 0 and 1
    state["over_arch.model.1.weight"] /= 1 + state["over_arch.model.1.weight"].abs().sum() * 10
    folder = tmp_path_factory.mktemp("torchrec")
    tables = [f"t_{t}" for t in features] if shared else []
    parts = read_torchrec(save(folder, state), tables)
    means = set(each) if whole else means & {*each}
    pooling: Any = "mean" if whole else {f"t_{t}": "mean" for t in means}
    write_foreign_model(parts, folder / "bundle", "ads", single_valued=single, pooling=pooling)
    bundle = load_bundle(folder / "bundle")
    request = random_request(random, [shape.rows[t] for t in features], shape.dense, 6, single)
    expected = torchrec_forward(state, request, features, means)
    for name in RUNTIMES:
        got = predictions(bundle, request, name, single)
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("prefix", ["model.", "module.", "dlrm_model.", "_dmp_wrapped_module.module.model."])
def test_wrappers_of_the_model_are_ignored(dcn: State, tmp_path: Path, prefix: str) -> None:
    plain = read_torchrec(save(tmp_path, dcn))
    wrapped = read_torchrec(save(tmp_path, {prefix + name: t for name, t in dcn.items()}))
    assert wrapped.architecture == plain.architecture
    assert wrapped.features == plain.features == ("t_0", "t_1", "t_2")


def test_the_schema_has_the_tables_names(dot: State, tmp_path: Path) -> None:
    parts = read_torchrec(save(tmp_path, dot), ["t_0", "t_1", "t_2"])
    schema = write_foreign_model(parts, tmp_path / "bundle", "ads").manifest.schema_
    assert [(f.name, f.table, f.cardinality) for f in schema.categorical] == [
        ("c0", "t_0", 7),
        ("c1", "t_1", 4),
        ("c2", "t_2", 9),
    ]


def test_tables_out_of_the_order_of_their_numbers_need_a_word(tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=tuple(range(2, 14)), width=2, bottom=(), top=())
    each = tuple(range(12))
    state = torchrec_state(np.random.default_rng(1), shape, each)
    alphabetical = {name: state[name] for name in sorted(state)}
    line = error_of(tmp_path, alphabetical)
    assert "order t_0,t_1,t_10,t_11,t_2" in line
    assert line.endswith("say the model's order with --tables")
    parts = read_torchrec(save(tmp_path, alphabetical), [f"t_{t}" for t in each])
    bundle = write_foreign_model(parts, tmp_path / "bundle", "ads")
    request = random_request(np.random.default_rng(2), shape.rows, 1, 5, single=False)
    np.testing.assert_allclose(
        predictions(bundle, request), torchrec_forward(state, request, each), atol=1e-5
    )


def test_names_without_numbers_keep_the_files_order(dot: State, tmp_path: Path) -> None:
    names = {"t_0": "user", "t_1": "ad", "t_2": "page 2"}
    renamed = {
        name if (table := name.split(".")[-2]) not in names else f"{SPARSE}.{names[table]}.weight": tensor
        for name, tensor in dot.items()
    }
    parts = read_torchrec(save(tmp_path, renamed))
    assert parts.features == ("user", "ad", "page 2")
    bundle = write_foreign_model(parts, tmp_path / "bundle", "ads")
    # "page 2" cannot name a table of a schema, so none of them does
    assert [f.table for f in bundle.manifest.schema_.categorical] == [None, None, None]
    assert bundle.manifest.training["imported"]["tables"] == {"c0": "user", "c1": "ad", "c2": "page 2"}


def test_a_shared_table_without_a_name_of_its_own_has_its_first_features(tmp_path: Path) -> None:
    features = (0, 0, 1)
    shape = Shape(dense=1, rows=(5, 3), width=2, bottom=(), top=())
    state = torchrec_state(np.random.default_rng(1), shape, features)
    dotted = {name.replace("t_", "a.t_"): tensor for name, tensor in state.items()}
    parts = read_torchrec(save(tmp_path, dotted), ["a.t_0", "a.t_0", "a.t_1"])
    bundle = write_foreign_model(parts, tmp_path / "bundle", "ads")
    assert [f.table_name for f in bundle.manifest.schema_.categorical] == ["c0", "c0", "c2"]
    request = random_request(np.random.default_rng(2), (5, 5, 3), 1, 5, single=False)
    np.testing.assert_allclose(
        predictions(bundle, request), torchrec_forward(state, request, features), atol=1e-5
    )


def test_features_that_share_a_table_are_found_by_the_shapes(tmp_path: Path) -> None:
    for cross in (None, (1, 2)):
        state = torchrec_state(np.random.default_rng(1), SHAPE, (0, 0, 1, 2, 2), cross)
        line = error_of(tmp_path, state)
        assert line.endswith("; it fits 5 features: name the table of each with --tables")


@pytest.mark.parametrize(
    ("tables", "offense"),
    [
        (["t_0", "t_1"], "--tables leaves out table t_2"),
        (["t_0", "t_1", "t_2", "t_9"], "--tables: there is no table t_9; the tables are t_0,t_1,t_2"),
    ],
)
def test_named_tables_are_those_of_the_file(
    dot: State, tmp_path: Path, tables: list[str], offense: str
) -> None:
    assert offense in error_of(tmp_path, dot, *tables)


@pytest.mark.parametrize(
    "name",
    [
        "dense_arch.model._mlp.0._linear.weight",
        "dense_arch.model._mlp.1._linear.bias",
        "over_arch.model.0._mlp.0._linear.weight",
        "over_arch.model.1.weight",
        f"{CROSS}.W_kernels.1",
        f"{CROSS}.V_kernels.0",
        f"{CROSS}.bias.0",
    ],
)
def test_a_missing_weight_is_named(dcn: State, tmp_path: Path, name: str) -> None:
    del dcn[name]
    assert error_of(tmp_path, dcn).endswith(f"{name} is missing")


def test_a_checkpoint_without_tables_is_reported(dot: State, tmp_path: Path) -> None:
    dense = {name: t for name, t in dot.items() if not name.startswith(SPARSE)}
    assert error_of(tmp_path, dense).endswith(f"{SPARSE}.TABLE.weight is missing: there is no table")


@pytest.mark.parametrize(
    ("name", "tensor", "offense"),
    [
        (
            f"{SPARSE}.t_1.weight",
            torch.ones(4, 8),
            "reads 16 numbers a row, the interaction of 3 features gives 20",
        ),
        (
            f"{SPARSE}.t_1.weight",
            torch.ones(4, 4, dtype=torch.int8),
            "t_1.weight is int8; weights are floats",
        ),
        ("inter_arch.interaction_branch1.model._mlp.0._linear.weight", torch.ones(1), "a DLRM_Projection"),
        ("inter_arch.interaction_branch2.model._mlp.0._linear.weight", torch.ones(1), "a DLRM_Projection"),
        (
            f"{CROSS}.kernels.0",
            torch.ones(1),
            f"{CROSS}.kernels.0 is not part of TorchRec's DLRM or DLRM_DCN",
        ),
        (f"{CROSS}.V_kernels.1", torch.ones(2, 16), "expected [16, 3] and [3, 16]"),
        (f"{CROSS}.W_kernels.0", torch.ones(16, 2), "expected [16, 3] and [3, 16]"),
        (f"{CROSS}.bias.1", torch.ones(5), f"{CROSS}.bias.1 has 5 numbers, {CROSS}.W_kernels.1 16 rows"),
        ("over_arch.model.1.weight", torch.ones(1, 9), "over_arch.model.1.weight reads 9 numbers a row"),
        ("over_arch.model.0._mlp.0._linear.weight", torch.ones(3, 9), "reads 9 numbers a row, the cross net"),
    ],
)
def test_unexpected_weights_are_rejected_by_name(
    dcn: State, tmp_path: Path, name: str, tensor: torch.Tensor, offense: str
) -> None:
    assert offense in error_of(tmp_path, dcn | {name: tensor})


@pytest.mark.parametrize("kind", ["DLRM", "DLRM_DCN"])
@pytest.mark.parametrize("quantized_to", [None, "quint8", "quint4x2"])
@pytest.mark.filterwarnings("ignore")
def test_torchrec_itself_agrees(kind: str, quantized_to: str | None, tmp_path: Path) -> None:
    torchrec = pytest.importorskip(
        "torchrec", reason="torchrec is no dependency; tried by hand, docs/import.md"
    )
    dlrm = pytest.importorskip("torchrec.models.dlrm")
    torch.manual_seed(5)
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t_{i}", embedding_dim=SHAPE.width, num_embeddings=n, feature_names=[f"f{i}"]
        )
        for i, n in enumerate(SHAPE.rows)
    ]
    cross = (2, 3) if kind == "DLRM_DCN" else ()
    bags = torchrec.EmbeddingBagCollection(tables=configs)
    model = getattr(dlrm, kind)(bags, SHAPE.dense, [6, SHAPE.width], [5, 1], *cross)
    if quantized_to is not None:
        modules = pytest.importorskip("torchrec.quant.embedding_modules")
        observer = torch.ao.quantization.PlaceholderObserver.with_args
        bags.qconfig = torch.ao.quantization.QConfig(
            observer(dtype=torch.float), observer(dtype=getattr(torch, quantized_to))
        )
        model.sparse_arch.embedding_bag_collection = modules.EmbeddingBagCollection.from_float(bags)
    saved = {name: getattr(t, "elem", t).clone() for name, t in model.state_dict().items()}
    kept = {None: None, "quint8": "int8", "quint4x2": "int4"}[quantized_to]
    bundle = write_foreign_model(
        read_torchrec(save(tmp_path, saved), quantized=kept), tmp_path / "bundle", "ads"
    )
    request = random_request(np.random.default_rng(2), SHAPE.rows, SHAPE.dense, 30, single=False)
    values, lengths = zip(*request.bags().values(), strict=True)
    sparse = torchrec.KeyedJaggedTensor(
        keys=[f"f{i}" for i in range(len(SHAPE.rows))],
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(np.concatenate(lengths)),
    )
    with torch.no_grad():
        expected = model(torch.from_numpy(request.dense).float(), sparse).sigmoid().squeeze(1)
    np.testing.assert_allclose(predictions(bundle, request), expected, atol=1e-5)


def test_a_top_layer_that_fits_no_number_of_features_is_rejected(dot: State, tmp_path: Path) -> None:
    dot["over_arch.model.0._mlp.0._linear.weight"] = torch.ones(3, 11)
    assert error_of(tmp_path, dot).endswith("reads 11 numbers a row, the interaction of 3 features gives 10")


@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), cross=st.tuples(st.integers(1, 3), st.integers(1, 80)), mean=st.booleans())
def test_a_cross_net_of_vectors_of_many_widths_is_served_with_zeros_behind_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int, cross: tuple[int, int], mean: bool
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    each = list(range(len(shape.rows)))
    state = torchrec_state(random, shape, each, cross, random.integers(1, 9, len(each)).tolist())
    state["over_arch.model.1.weight"] /= 1 + state["over_arch.model.1.weight"].abs().sum() * 10
    folder = tmp_path_factory.mktemp("widths")
    parts = read_torchrec(save(folder, state))
    bundle = write_foreign_model(parts, folder / "bundle", "ads", pooling="mean" if mean else "sum")
    request = random_request(random, shape.rows, shape.dense, 6, single=False)
    expected = torchrec_forward(state, request, each, each if mean else ())
    for name in RUNTIMES:
        np.testing.assert_allclose(predictions(bundle, request, name), expected, atol=1e-5)


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**31),
    bits=st.sampled_from([8, 4]),
    split=st.booleans(),
    padded=st.booleans(),
    width=st.sampled_from([5, 13, 16, 31, 64]),
)
def test_quantized_tables_are_decoded(
    tmp_path_factory: pytest.TempPathFactory, seed: int, bits: int, split: bool, padded: bool, width: int
) -> None:
    random = np.random.default_rng(seed)
    shape = Shape(dense=3, rows=(7, 40), width=width, bottom=(6,), top=(5,))
    state, decoded = quantized(torchrec_state(random, shape, (0, 1)), 1, bits, split, padded)
    folder = tmp_path_factory.mktemp("quantized")
    parts = read_torchrec(save(folder, state), quantized=f"int{bits}")
    bundle = write_foreign_model(parts, folder / "bundle", "ads")
    stored = bundle.stage().state_dict()["store.weight"][7:]
    np.testing.assert_allclose(stored, decoded[f"{SPARSE}.t_1.weight"], rtol=1e-6, atol=1e-6)
    request = random_request(random, shape.rows, 3, 6, single=False)
    expected = torchrec_forward(decoded, request, (0, 1))
    np.testing.assert_allclose(predictions(bundle, request), expected, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("split", [False, True])
def test_the_bytes_of_a_row_tell_its_type(bits: int, split: bool, tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=(9,), width=32, bottom=(), top=())
    state, decoded = quantized(torchrec_state(np.random.default_rng(1), shape, (0,)), 0, bits, split)
    parts = read_torchrec(save(tmp_path, state))
    rows = parts.tables["t_0"].read(2, 7)
    np.testing.assert_allclose(rows, decoded[f"{SPARSE}.t_0.weight"][2:7], rtol=1e-6, atol=1e-6)


def test_scales_saved_as_bytes_are_read(tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=(9,), width=32, bottom=(), top=())
    state, decoded = quantized(torchrec_state(np.random.default_rng(1), shape, (0,)), 0, 8, split=True)
    for which in ("qscale", "qbias"):
        state[f"{SPARSE}.t_0.weight_{which}"] = state[f"{SPARSE}.t_0.weight_{which}"].view(torch.uint8)
    rows = read_torchrec(save(tmp_path, state)).tables["t_0"].read(0, 9)
    np.testing.assert_allclose(rows, decoded[f"{SPARSE}.t_0.weight"], rtol=1e-6, atol=1e-6)


def test_quantized_rows_of_other_sizes_are_rejected(dot: State, tmp_path: Path) -> None:
    packed, _ = quantized(dot, 1, 8)
    assert error_of(tmp_path, packed).endswith(
        f"{SPARSE}.t_1.weight has 16 bytes a row, which 4 numbers take in int8 and in int4: "
        "say which with --quantized"
    )
    name = f"{SPARSE}.t_1.weight"
    wide = dot | {name: torch.zeros(4, 40, dtype=torch.uint8)}
    assert "has 40 bytes a row; 4 numbers take 8 in int8 and 6 in int4, or the next" in error_of(
        tmp_path, wide
    )
    split, _ = quantized(dot, 1, 8, split=True)
    short = split | {f"{name}_qscale": torch.ones(3, 1, dtype=torch.float16)}
    assert "weight_qscale has shape [3, 1]; expected one fp16 number" in error_of(tmp_path, short)
    del split[f"{name}_qbias"]
    assert "weight_qbias is missing" in error_of(tmp_path, split)


def test_a_pooling_of_no_table_is_rejected(dot: State, tmp_path: Path) -> None:
    parts = read_torchrec(save(tmp_path, dot))
    with pytest.raises(CheckpointError, match="pooling of table t_9: the tables are t_0, t_1, t_2"):
        write_foreign_model(parts, tmp_path / "bundle", "ads", pooling={"t_9": "mean"})


def test_quantized_tables_of_several_poolings_need_the_models_order(tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=(9, 5), width=32, bottom=(), top=())
    state, _ = quantized(torchrec_state(np.random.default_rng(1), shape, (0, 1)), 0, 8)
    file = save(tmp_path, state)
    with pytest.raises(CheckpointError, match="stand grouped by them in the file; say the model's order"):
        write_foreign_model(read_torchrec(file), tmp_path / "bundle", "ads", pooling={"t_1": "mean"})
    parts = read_torchrec(file, ["t_0", "t_1"])
    schema = write_foreign_model(parts, tmp_path / "bundle", "ads", pooling={"t_1": "mean"}).manifest.schema_
    assert [f.pooling for f in schema.categorical] == ["sum", "mean"]


def test_weights_by_position_are_rejected(dot: State, tmp_path: Path) -> None:
    name = "sparse_arch.embedding_bag_collection._feature_processors.position_weights.f"
    assert "weights by position in a list" in error_of(tmp_path, dot | {name: torch.ones(3)})
