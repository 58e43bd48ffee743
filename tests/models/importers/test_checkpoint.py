from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyrec.models.importers.checkpoint import CheckpointError, read_weights

STATE = OrderedDict({"emb_l.0.weight": torch.arange(6.0).view(3, 2), "bot_l.0.bias": torch.ones(2)})

Save = Callable[[Any, Path], object]
SAVES: dict[str, Save] = {
    "zip": torch.save,
    "legacy": lambda what, path: torch.save(what, path, _use_new_zipfile_serialization=False),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def line_of(path: Path) -> str:
    """Returns the one line of the error for a file."""
    with pytest.raises(CheckpointError) as error:
        read_weights(path, "dlrm")
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 400 + len(str(path))
    return line


class Touch:
    """Unpickled by an ordinary reader, this writes a file."""

    def __init__(self, path: Path, call: Callable[..., object]) -> None:
        self.path, self.call = path, call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, (f"open({str(self.path)!r}, 'w').close()",)


def run(source: str) -> None:
    exec(source)


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize(
    ("call", "name"),
    [(eval, "eval"), (exec, "exec"), (os.system, "system"), (run, "run")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_code_in_a_checkpoint_is_named_and_never_run(
    save: Save, call: Callable[..., object], name: str, file: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    save({"state_dict": STATE, "epoch": Touch(touched, call)}, file)
    line = line_of(file)
    assert "needs code to be run" in line
    assert name in line
    assert "torch.save(model.state_dict(), FILE)" in line
    assert not touched.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_bare_pickle_is_never_run(protocol: int, file: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    file.write_bytes(pickle.dumps({"state_dict": Touch(touched, exec)}, protocol))
    assert str(file) in line_of(file)
    assert not touched.exists()


def test_an_environment_that_trusts_every_file_changes_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"state_dict": STATE, "epoch": Touch(tmp_path / "touched", exec)}, file)
    assert "needs code to be run" in line_of(file)
    assert not (tmp_path / "touched").exists()


def test_a_whole_module_is_rejected(file: Path) -> None:
    torch.save(torch.nn.Linear(2, 1), file)
    assert "needs code to be run (torch.nn.modules.linear.Linear)" in line_of(file)


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_counters_of_numpy_are_passed_over(save: Save, file: Path) -> None:
    counters = {
        "iter": np.int64(3),
        "train_loss": np.float32(0.5),
        "total_loss": np.array(3.0, np.float32),
        "test_acc": np.float64(0.7),
        "history": np.arange(3),
        "lr": 0.1,
    }
    save({**counters, "state_dict": STATE, "opt_state_dict": {"state": {0: {"sum": torch.ones(3)}}}}, file)
    weights = read_weights(file, "dlrm")
    assert torch.equal(weights.take("emb_l.0.weight", 2), STATE["emb_l.0.weight"])


def test_names_written_by_numpy_1_are_known(file: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": STATE, "loss": np.float64(0.5), "lr": np.ones(2)}, tmp_path / "new")
    with zipfile.ZipFile(tmp_path / "new") as new, zipfile.ZipFile(file, "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in content
                content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            old.writestr(name, content)
    assert read_weights(file, "dlrm").names("(emb_l.0.weight)")


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.module.dlrm_model."])
@pytest.mark.parametrize("holder", [None, "state_dict", "model_state_dict", "model"])
def test_wrappers_and_holders_vanish(save: Save, prefix: str, holder: str | None, file: Path) -> None:
    state = {prefix + name: tensor for name, tensor in STATE.items()}
    save({holder: state, "epoch": 1} if holder else state, file)
    weights = read_weights(file, "dlrm")
    for name, tensor in STATE.items():
        assert torch.equal(weights.take(name, tensor.dim()), tensor)
    weights.finish("it")


def test_a_wrapper_inside_a_name_vanishes(file: Path) -> None:
    torch.save({"bot_l.module.0.weight": torch.ones(2, 3), "emb_l.0._orig_mod.weight": torch.ones(2)}, file)
    assert read_weights(file, "dlrm").names("(.*)") == ["bot_l.0.weight", "emb_l.0.weight"]


def test_two_models_in_one_state_dict_are_rejected(file: Path) -> None:
    torch.save({"model.emb_l.0.weight": torch.ones(2), "ema.emb_l.0.weight": torch.ones(2)}, file)
    assert "two weights are called emb_l.0.weight" in line_of(file)


def test_weights_stay_in_the_file_until_they_are_used(file: Path) -> None:
    big = torch.zeros(1 << 20)
    torch.save({"emb_l.0.weight": big}, file)
    weight = read_weights(file, "dlrm").take("emb_l.0.weight", 1)
    mapped = Path("/proc/self/maps").read_text()
    assert str(file) in mapped
    assert torch.equal(weight, big)


@pytest.mark.parametrize(
    ("saved", "offense"),
    [
        ({"weight": torch.ones(2)}, "no emb_l or bot_l or top_l in it; it holds 'weight'"),
        ({}, "it holds nothing"),
        ({f"k{i}": i for i in range(9)}, "it holds 'k0', 'k1', 'k2', 'k3', 'k4', ..."),
        ([1, 2], "holds a list, not a state dict"),
        (torch.ones(2), "holds a Tensor, not a state dict"),
        ({"model": {"over_arch.model.1.bias": 1}}, "in it; it is for: polyrec import torchrec"),
        ({"state_dict": [1]}, "no emb_l or bot_l or top_l in it"),
        ({"model": {"mlp.weight": 1}}, "it holds 'mlp.weight'; rename the weights of a model of your own"),
        ({"a\x1b[2J\n": 1}, r"the key 'a\x1b[2J\n', which is no name"),
    ],
)
def test_a_checkpoint_of_another_model_lists_its_content(saved: Any, offense: str, file: Path) -> None:
    torch.save(saved, file)
    assert offense in line_of(file)


@pytest.mark.parametrize(
    ("tensor", "offense"),
    [
        (torch.eye(2).to_sparse(), "is not a plain tensor"),
        (torch.empty(2, 2, device="meta"), "is not a plain tensor"),
        (7, "is not a plain tensor"),
        (torch.ones(1).expand(1 << 20, 1 << 20), "claims shape [1048576, 1048576] but holds fewer numbers"),
        (torch.ones(2, 2, dtype=torch.uint8), "is uint8; weights are floats"),
        (torch.eye(2, dtype=torch.complex64), "is complex64; weights are floats"),
        (torch.full((2, 2), torch.nan), "holds a number that is not finite"),
        (torch.ones(2), "has shape [2]; expected 2 dimensions"),
    ],
    ids=str,
)
def test_only_plain_finite_floats_are_weights(tensor: Tensor, offense: str, file: Path) -> None:
    torch.save({"emb_l.0.weight": tensor}, file)
    with pytest.raises(CheckpointError) as error:
        read_weights(file, "dlrm").take("emb_l.0.weight", 2)
    assert f"emb_l.0.weight {offense}" in str(error.value)


def test_shards_of_a_distributed_run_are_to_be_gathered(file: Path) -> None:
    from torch import distributed
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        torch.save({"emb_l.0.weight": distribute_tensor(torch.ones(4, 2), mesh)}, file)
    finally:
        distributed.destroy_process_group()
    with pytest.raises(CheckpointError, match=r"emb_l\.0\.weight is a shard \(DTensor\).*full_tensor\(\)"):
        read_weights(file, "dlrm").take("emb_l.0.weight", 2)
    # torch refuses them in a process that has not imported torch.distributed.tensor
    read = f"from polyrec.models.importers.checkpoint import *; read_weights({str(file)!r}, 'dlrm')"
    said = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True).stderr
    assert "holds shards of a distributed run (DTensor)" in said
    assert "full_tensor()" in said


def test_a_weight_may_be_a_view_or_a_parameter(file: Path) -> None:
    view = torch.arange(6.0).view(2, 3).T
    torch.save({"emb_l.0.weight": view, "emb_l.1.weight": torch.nn.Parameter(torch.ones(2, 2))}, file)
    weights = read_weights(file, "dlrm")
    assert torch.equal(weights.take("emb_l.0.weight", 2), view)
    assert not weights.take("emb_l.1.weight", 2).requires_grad


def test_a_file_without_weights_is_reported(file: Path, tmp_path: Path) -> None:
    assert line_of(file) == f"no checkpoint '{file}'"
    assert "is a folder (of a distributed run?)" in line_of(tmp_path)
    for content in (b"", b"hello", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\x00" * 100):
        file.write_bytes(content)
        assert str(file) in line_of(file)


def test_the_oldest_checkpoint_format_is_rejected_unread(file: Path, tmp_path: Path) -> None:
    with tarfile.open(file, "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            (tmp_path / name).write_bytes(pickle.dumps(Touch(tmp_path / "touched", exec), 2))
            tar.add(tmp_path / name, name)
    assert "not a file of weights as torch.save writes it" in line_of(file)
    assert not (tmp_path / "touched").exists()


@settings(max_examples=150)
@given(
    kind=st.sampled_from(list(SAVES)),
    at=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
    cut=st.booleans(),
)
@example(kind="zip", at=0.0, value=0, cut=True)
def test_a_damaged_file_is_read_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, kind: str, at: float, value: int, cut: bool
) -> None:
    file = tmp_path_factory.mktemp("damaged") / "model.pt"
    SAVES[kind]({"state_dict": STATE, "loss": np.float64(1)}, file)
    content = bytearray(file.read_bytes())
    position = int(at * len(content))
    content[position] = value
    file.write_bytes(content[:position] if cut else content)
    try:
        weights = read_weights(file, "dlrm")
        for name, tensor in STATE.items():
            weights.take(name, tensor.dim())
    except CheckpointError as e:
        assert "\n" not in str(e)  # noqa: PT017
