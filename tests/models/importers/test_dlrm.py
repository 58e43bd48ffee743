from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.importers.checkpoint import CheckpointError
from polyrec.models.importers.dlrm import read_dlrm
from polyrec.models.importers.foreign_model import write_foreign_model
from polyrec.models.runtimes import open_runtime
from tests.models.executions import RUNTIMES
from tests.models.importers.foreign import (
    Shape,
    State,
    dlrm_forward,
    dlrm_state,
    normal,
    random_request,
    random_shape,
)

SHAPE = Shape(dense=3, rows=(7, 4, 9), width=4, bottom=(6,), top=(5,))

KINDS = st.sampled_from([("dot", False), ("dot", True), ("cat", False)])


@pytest.fixture
def state() -> State:
    return dlrm_state(np.random.default_rng(1), SHAPE)


def save(folder: Path, saved: Any) -> Path:
    torch.save(saved, folder / "model.pt")
    return folder / "model.pt"


def error_of(folder: Path, saved: Any, *how: Any) -> str:
    """Returns the one line of the error for a checkpoint."""
    with pytest.raises(CheckpointError) as error:
        read_dlrm(save(folder, saved), *how)
    assert "\n" not in str(error.value)
    assert str(folder / "model.pt") in str(error.value)
    return str(error.value)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), kind=KINDS, single=st.booleans(), rows=st.integers(1, 9))
def test_the_bundle_gives_the_originals_probabilities(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: tuple[Any, bool], single: bool, rows: int
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    state = dlrm_state(random, shape, *kind)
    folder = tmp_path_factory.mktemp("dlrm")
    parts = read_dlrm(save(folder, {"state_dict": state, "epoch": 1}), *kind)
    write_foreign_model(parts, folder / "bundle", "ads", single_valued=single)
    bundle = load_bundle(folder / "bundle")
    request = random_request(random, shape.rows, shape.dense, rows, single)
    dense = request.dense.astype(np.float32)
    batch = (
        bundle.encoder.from_ids(dense, request.sparse(), {})
        if single
        else bundle.encoder.from_ids(dense, np.empty((rows, 0), np.int64), request.bags())
    )
    expected = dlrm_forward(state, request, *kind)
    for name in RUNTIMES:
        np.testing.assert_allclose(open_runtime(name, bundle).predict(batch), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_precision_are_served_as_float32(
    state: State, tmp_path: Path, dtype: torch.dtype
) -> None:
    rounded = {name: t.to(dtype) for name, t in state.items()}
    bundle = write_foreign_model(read_dlrm(save(tmp_path, rounded)), tmp_path / "bundle", "ads")
    request = random_request(np.random.default_rng(2), SHAPE.rows, SHAPE.dense, 5, single=False)
    batch = bundle.encoder.from_ids(
        request.dense.astype(np.float32), np.empty((5, 0), np.int64), request.bags()
    )
    got = open_runtime("torch", bundle).predict(batch)
    np.testing.assert_allclose(got, dlrm_forward(rounded, request), atol=1e-5)


def test_tables_keep_the_order_of_their_numbers(tmp_path: Path) -> None:
    shape = Shape(dense=1, rows=tuple(range(2, 14)), width=2, bottom=(), top=())
    state = dlrm_state(np.random.default_rng(1), shape)
    shuffled = {name: state[name] for name in sorted(state)}
    assert list(shuffled).index("emb_l.10.weight") < list(shuffled).index("emb_l.2.weight")
    parts = read_dlrm(save(tmp_path, shuffled))
    assert [t.rows for t in parts.tables.values()] == list(shape.rows)


@pytest.mark.parametrize(
    ("saved", "asked", "remedy"),
    [
        (("cat", False), ("dot", False), "it fits --interaction cat: say so"),
        (("dot", True), ("dot", False), "it fits --interaction dot --interact-itself: say so"),
        (("dot", False), ("dot", True), "it fits --interaction dot: say so"),
        (("dot", False), ("cat", False), "it fits --interaction dot: say so"),
    ],
)
def test_another_interaction_is_found_by_the_shapes(
    tmp_path: Path, saved: Any, asked: Any, remedy: str
) -> None:
    state = dlrm_state(np.random.default_rng(1), SHAPE, *saved)
    line = error_of(tmp_path, state, *asked)
    assert "top_l.0.weight reads" in line
    assert line.endswith(remedy)


def test_a_top_layer_that_fits_nothing_lists_the_interactions(state: State, tmp_path: Path) -> None:
    state["top_l.0.weight"] = torch.ones(5, 99)
    assert error_of(tmp_path, state).endswith(
        "top_l.0.weight reads 99 numbers a row, --interaction dot gives 10; no interaction of 4 vectors of 4 "
        "fits: --interaction dot gives 10; --interaction dot --interact-itself gives 14; "
        "--interaction cat gives 16"
    )


@pytest.mark.parametrize(
    "name", ["emb_l.1.weight", "bot_l.0.weight", "bot_l.2.bias", "top_l.0.weight", "top_l.2.weight"]
)
def test_a_missing_weight_is_named(state: State, tmp_path: Path, name: str) -> None:
    del state[name]
    assert error_of(tmp_path, state).endswith(f"{name} is missing")


def test_a_missing_last_table_shows_in_the_interaction(state: State, tmp_path: Path) -> None:
    del state["emb_l.2.weight"]
    assert "top_l.0.weight reads 10 numbers a row, --interaction dot gives 7" in error_of(tmp_path, state)


@pytest.mark.parametrize(
    ("name", "tensor", "offense"),
    [
        ("v_W_l.0", torch.ones(6), "v_W_l.0 has 6 weights, emb_l.0 7 rows"),
        ("v_W_l.3", torch.ones(6), "v_W_l.3 is not part of facebookresearch/dlrm"),
        ("emb_l.3.weight_q", torch.ones(2, 4), "emb_l.3.weight_q: a model with quotient-remainder tables"),
        ("emb_l.3.embs.weight", torch.ones(2, 2), "table emb_l.3 has vectors of 2 numbers, emb_l.0 of 4"),
        ("emb_l.3.proj.weight", torch.ones(4, 2), "emb_l.3.proj.weight is not part of"),
        ("attention.weight", torch.ones(2), "attention.weight is not part of facebookresearch/dlrm"),
        ("bot_l.1.weight", torch.ones(6), "bot_l.1.weight is not part of"),
        ("emb_l.1.weight", torch.ones(4, 8), "table emb_l.1 has vectors of 8 numbers, emb_l.0 of 4"),
        ("emb_l.1.weight", torch.ones(4), r"emb_l.1.weight has shape [4]; expected 2 dimensions"),
        ("emb_l.1.weight", torch.ones(0, 4), "emb_l.1.weight has shape [0, 4]"),
        ("emb_l.1.weight", torch.ones(4, 4, dtype=torch.int8), "emb_l.1.weight is int8; weights are floats"),
        ("bot_l.2.weight", torch.ones(4, 5), "bot_l.2.weight reads 5 numbers a row, bot_l.0 gives 6"),
        ("bot_l.2.bias", torch.ones(3), "bot_l.2.bias has 3 numbers, bot_l.2.weight 4 rows"),
        ("bot_l.0.bias", torch.full((6,), torch.nan), "bot_l.0.bias holds a number that is not finite"),
        ("top_l.0.weight", torch.full((5, 10), torch.inf), "top_l.0.weight holds a number that is not"),
    ],
)
def test_unexpected_weights_are_rejected_by_name(
    state: State, tmp_path: Path, name: str, tensor: torch.Tensor, offense: str
) -> None:
    assert offense in error_of(tmp_path, state | {name: tensor})


def test_vectors_and_bottom_of_different_widths_are_rejected(state: State, tmp_path: Path) -> None:
    state |= {"bot_l.2.weight": torch.ones(3, 6), "bot_l.2.bias": torch.ones(3)}
    assert "bot_l.2 gives 3 numbers a row, the tables have vectors of 4" in error_of(tmp_path, state)


def test_two_outputs_are_rejected(state: State, tmp_path: Path) -> None:
    state |= {"top_l.2.weight": torch.ones(2, 5), "top_l.2.bias": torch.ones(2)}
    assert "top_l.2 gives 2 numbers a row; a click model gives one" in error_of(tmp_path, state)


def test_itself_goes_with_dot(state: State, tmp_path: Path) -> None:
    assert "--interact-itself goes with --interaction dot" in error_of(tmp_path, state, "cat", True)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), kind=KINDS, weighted=st.booleans(), mixed=st.booleans())
def test_learned_weights_and_mixed_dimensions_become_part_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: tuple[Any, bool], weighted: bool, mixed: bool
) -> None:
    random = np.random.default_rng(seed)
    shape = random_shape(random)
    state = dlrm_state(random, shape, *kind)
    for i, rows in enumerate(shape.rows):
        if weighted:
            state[f"v_W_l.{i}"] = normal(random, rows)
        if mixed:
            width = int(random.integers(1, shape.width + 1))
            state[f"emb_l.{i}.embs.weight"] = normal(random, rows, width)
            del state[f"emb_l.{i}.weight"]
            if width < shape.width:
                state[f"emb_l.{i}.proj.weight"] = normal(random, shape.width, width)
    folder = tmp_path_factory.mktemp("dlrm")
    parts = read_dlrm(save(folder, {f"module.{name}": t for name, t in state.items()}), *kind)
    bundle = write_foreign_model(parts, folder / "bundle", "ads")
    request = random_request(random, shape.rows, shape.dense, 6, single=False)
    dense = request.dense.astype(np.float32)
    batch = bundle.encoder.from_ids(dense, np.empty((6, 0), np.int64), request.bags())
    for name in RUNTIMES:
        got = open_runtime(name, bundle).predict(batch)
        np.testing.assert_allclose(got, dlrm_forward(state, request, *kind), atol=1e-5)


def test_concatenated_vectors_of_many_widths_get_zeros_behind_them(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    state = dlrm_state(random, SHAPE, "cat")
    widths = (2, 4, 7)
    for i, width in enumerate(widths):
        state[f"emb_l.{i}.weight"] = normal(random, SHAPE.rows[i], width)
    state["top_l.0.weight"] = normal(random, 5, SHAPE.width + sum(widths))
    bundle = write_foreign_model(read_dlrm(save(tmp_path, state), "cat"), tmp_path / "bundle", "ads")
    assert bundle.manifest.architecture.width == 7
    request = random_request(random, SHAPE.rows, SHAPE.dense, 9, single=False)
    dense = request.dense.astype(np.float32)
    batch = bundle.encoder.from_ids(dense, np.empty((9, 0), np.int64), request.bags())
    got = open_runtime("torch", bundle).predict(batch)
    np.testing.assert_allclose(got, dlrm_forward(state, request, "cat"), atol=1e-5)


def test_a_projection_of_another_table_is_rejected(state: State, tmp_path: Path) -> None:
    state |= {"emb_l.2.embs.weight": torch.ones(9, 2), "emb_l.2.proj.weight": torch.ones(4, 3)}
    del state["emb_l.2.weight"]
    assert "emb_l.2.proj.weight reads 3 numbers a row, the table has 2" in error_of(tmp_path, state)
