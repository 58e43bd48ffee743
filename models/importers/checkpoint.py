"""Reads the named weights of a PyTorch checkpoint without executing code from the file.

A checkpoint is a pickle, which can execute code. It is read by torch's weights-only unpickler, which allows
tensors and plain containers and refuses all other names. Counters that training scripts save with the weights
are often NumPy scalars. Their names map to a placeholder, so that NumPy's constructors are not called with
untrusted arguments either. Weights stay memory-mapped until they are copied.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyrec.models.errors import PolyrecError

ROOTS = {
    "dlrm": ("emb_l", "bot_l", "top_l"),
    "torchrec": ("sparse_arch", "dense_arch", "inter_arch", "over_arch"),
}
"""Top-level modules of a model, by format."""
BESIDE = frozenset({"v_W_l"})
"""Other names that may stand at the top level, below the same wrappers."""

WRAPPERS = frozenset({"module", "_orig_mod", "_dmp_wrapped_module"})
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model")
SAVE_COMMAND = "torch.save(model.state_dict(), FILE)"
GATHER_COMMAND = (
    'torch.save({k: v.full_tensor() if hasattr(v, "full_tensor") else v '
    "for k, v in model.state_dict().items()}, FILE)"
)
"""Makes whole tensors of the shards of a distributed run (DTensor), on all its processes."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_NUMPY = (
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{f}" for core in ("core", "_core") for f in ("scalar", "_reconstruct")),
)
_BLOCKED = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")


class CheckpointError(PolyrecError):
    """Raised for a checkpoint that is missing, unsafe, or of another model."""


class _Ignored:
    """Placeholder for a NumPy value of a checkpoint: ignores its arguments and state."""

    def __new__(cls, *_arguments: object) -> _Ignored:
        return super().__new__(cls)

    def __setstate__(self, _state: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear layer and its name in the checkpoint: weight float [out, in], bias float [out]."""

    name: str
    weight: Tensor
    bias: Tensor


class CheckpointWeights:
    """The weights of one model. Each can be taken once, so that unexpected ones remain at the end."""

    def __init__(self, file: Path, tensors: Mapping[str, object]) -> None:
        self.file = file
        self._left = dict(tensors)

    def error(self, what: str) -> CheckpointError:
        """Creates an error that names this file."""
        return CheckpointError(f"checkpoint '{self.file}': {what}")

    def names(self, pattern: str) -> list[str]:
        """Returns group 1 of `pattern` for the matching names not yet taken, in file order."""
        found = (re.fullmatch(pattern, name) for name in self._left)
        return [match[1] for match in found if match]

    def dtype(self, name: str) -> torch.dtype | None:
        """Returns the dtype of a tensor by name; None if it is absent or already taken."""
        return getattr(self._left.get(name), "dtype", None)

    def take(
        self,
        name: str,
        dimensions: int,
        check_finite: bool = True,
        dtypes: Collection[torch.dtype] = FLOATS,
    ) -> Tensor:
        """Takes a tensor by name.

        Raises CheckpointError unless it is dense, of that rank, of one of the dtypes, and finite. The check
        for finite values is a pass over the tensor; large tables are checked while they are copied instead.
        """
        if name not in self._left:
            raise self.error(f"{name} is missing")
        tensor = self._left.pop(name)
        if hasattr(tensor, "full_tensor"):
            raise self.error(f"{name} is a shard (DTensor); gather the weights: {GATHER_COMMAND}")
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise self.error(
                f"{name} is not a plain tensor (sharded, sparse or without data?); gather the weights: "
                f"{SAVE_COMMAND}"
            )
        if tensor.dtype not in dtypes:
            wanted = "weights are floats" if dtypes is FLOATS else f"expected {_types(dtypes)}"
            raise self.error(f"{name} is {_types([tensor.dtype])}; {wanted}")
        if tensor.dim() != dimensions or not tensor.numel():
            raise self.error(
                f"{name} has shape {list(tensor.shape)}; expected {dimensions} dimensions, not empty"
            )
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise self.error(f"{name} claims shape {list(tensor.shape)} but holds fewer numbers")
        if check_finite and not torch.isfinite(tensor).all():
            raise self.error(f"{name} holds a number that is not finite")
        return tensor.detach()

    def layer(self, name: str) -> LinearLayer:
        """Takes a linear layer by name. Raises CheckpointError."""
        weight, bias = self.take(f"{name}.weight", 2), self.take(f"{name}.bias", 1)
        if bias.shape[0] != weight.shape[0]:
            raise self.error(f"{name}.bias has {bias.shape[0]} numbers, {name}.weight {weight.shape[0]} rows")
        return LinearLayer(name, weight, bias)

    def mlp(self, stem: str, tail: str = "", step: int = 1) -> tuple[LinearLayer, ...]:
        """Takes the layers `stem` + 0, step, 2 step, ... + `tail`, and checks that consecutive shapes match.

        Raises CheckpointError if a layer is missing or two do not match.
        """
        numbers = self.names(f"{re.escape(stem)}([0-9]{{1,4}}){re.escape(tail)}\\.(?:weight|bias)")
        last = max(map(int, numbers), default=0)
        layers = tuple(self.layer(f"{stem}{n}{tail}") for n in range(0, last + 1, step))
        for before, after in pairwise(layers):
            self.check_reads(after, before.weight.shape[0], before.name)
        return layers

    def check_reads(self, layer: LinearLayer, numbers: int, source: str) -> None:
        """Raises CheckpointError unless `layer` reads this many numbers per row."""
        if layer.weight.shape[1] != numbers:
            raise self.error(
                f"{layer.name}.weight reads {layer.weight.shape[1]} numbers a row, {source} gives {numbers}"
            )

    def finish(self, model: str) -> None:
        """Raises CheckpointError if any weight was not taken, which means that it is another model."""
        for name in self._left:
            raise self.error(f"{name} is not part of {model}; a model with it cannot be imported")


def read_weights(path: str | Path, format: str) -> CheckpointWeights:
    """Reads the weights of a model of this format (a key of ROOTS), by their names in the unwrapped model.

    The state dict may be at the top level or under one of STATE_DICT_KEYS. Wrappers (DataParallel,
    torch.compile, DistributedModelParallel) and everything before the first root are removed from the names.
    Raises CheckpointError: no such file, not a checkpoint, one that needs code to run, or no roots.
    """
    file = Path(path)
    loaded = _load(file)
    if not isinstance(loaded, dict):
        raise CheckpointError(f"checkpoint '{file}' holds a {type(loaded).__name__}, not a state dict")
    states = [s for s in (loaded, *(loaded.get(key) for key in STATE_DICT_KEYS)) if isinstance(s, dict)]
    for state in states:
        if tensors := _unwrapped(file, state, ROOTS[format]):
            return CheckpointWeights(file, tensors)
    line = f"checkpoint '{file}': no {' or '.join(ROOTS[format])} in it; it "
    for other, roots in ROOTS.items():
        if any(_unwrapped(file, state, roots) for state in states):
            raise CheckpointError(f"{line}is for: polyrec import {other}")
    names = list(states[-1])  # the inner one, if the file holds more than a state dict
    keys = ", ".join(f"{k!r:.60}" for k in names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
    raise CheckpointError(f"{line}holds {keys}; rename the weights of a model of your own: docs/import.md")


def _unwrapped(file: Path, state: Mapping[Any, object], roots: Collection[str]) -> dict[str, object]:
    """Returns the tensors of a state dict by unwrapped name; empty if none is below a root."""
    bare: dict[str, object] = {}
    found = False
    for key, value in state.items():
        if not str(key).isprintable():
            raise CheckpointError(f"checkpoint '{file}': it has the key {key!r:.80}, which is no name")
        parts = [part for part in str(key).split(".") if part not in WRAPPERS]
        found |= any(part in roots for part in parts)
        at = next((i for i, part in enumerate(parts) if part in roots or part in BESIDE), None)
        name = ".".join(parts[at:])
        if name in bare:
            raise CheckpointError(
                f"checkpoint '{file}': two weights are called {name}; save one model a file"
            )
        bare[name] = value
    return bare if found else {}


def _types(dtypes: Collection[torch.dtype]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _load(file: Path) -> object:
    if not file.exists():
        raise CheckpointError(f"no checkpoint '{file}'")
    if not file.is_file():
        raise CheckpointError(
            f"checkpoint '{file}' is a folder (of a distributed run?); gather the weights in one file: "
            f"{SAVE_COMMAND}"
        )
    stand_ins: list[Any] = [(_Ignored, name) for name in _NUMPY]
    try:
        # only files written by torch.save since version 1.6 can be memory-mapped
        mapped = zipfile.is_zipfile(file)
        with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings(action="ignore"):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError as e:
        raise CheckpointError(f"checkpoint '{file}' cannot be read: {e.strerror or e}") from None
    except Exception as e:  # a damaged or hostile file makes torch raise almost anything
        blocked = _BLOCKED.search(str(e))
        if blocked is None and "DTensor" in str(e):
            raise CheckpointError(
                f"checkpoint '{file}' holds shards of a distributed run (DTensor); gather the weights: "
                f"{GATHER_COMMAND}"
            ) from None
        if blocked is None:
            raise CheckpointError(
                f"'{file}' is damaged, or not a file of weights as torch.save writes it ({type(e).__name__})"
            ) from None
        raise CheckpointError(
            f"checkpoint '{file}' needs code to be run ({ascii(blocked[1])[1:-1]:.80}), which is refused; "
            f"where you trust it, load it and save the weights alone: {SAVE_COMMAND}"
        ) from None
