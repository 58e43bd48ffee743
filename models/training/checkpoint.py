"""Saves checkpoints, from which a training resumes after its process was killed.

There is one safetensors file per training of a command (`fit`, `refit`). Its tensors are the weights,
optimizer state, averaged and best weights; its header holds the step, position in the data, random states and
checks as JSON. A file is written under another name, synced and renamed, so that a kill at any moment leaves
either the old or the new one. The header also identifies the training, so that a different training cannot
load the checkpoint.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from polyrec.models.errors import PolyrecError
from polyrec.models.files import atomic_path, sync

FORMAT = "polyrec-checkpoint-1"
LOCK = "lock"
MAX_SHOWN = 40
"""Maximum characters of a value in a message."""

Identity = Mapping[str, Any]
"""All that a training depends on, JSON: a checkpoint goes with an equal one only."""


class ResumeError(PolyrecError):
    """Raised for a checkpoint that cannot be read or written, or belongs to another training."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a training. values: JSON-serializable."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def under(self, part: str) -> dict[str, Tensor]:
        """Returns the tensors whose names begin with `part` and a dot, keyed by the rest of their names."""
        return {name[len(part) + 1 :]: t for name, t in self.tensors.items() if name.startswith(f"{part}.")}

    def __or__(self, other: State) -> State:
        return State(self.tensors | other.tensors, self.values | other.values)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The folder of the checkpoints, and the seconds of training between two of them."""

    folder: Path
    every_s: float


class Checkpoints:
    """The checkpoints of one command. Use it in a `with` block, which locks the folder.

    resumed: called with a message for each checkpoint found.
    Raises ResumeError if the folder is in use or cannot be written.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        identity: Identity,
        resumed: Callable[[str], object] = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._every_s = settings.folder, settings.every_s
        self._identity, self._resumed, self._clock = _flat(identity), resumed, clock
        self._next = clock() + self._every_s
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self._folder / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ResumeError(f"checkpoint '{self._folder}': another training uses this folder") from None
        except OSError as e:
            raise ResumeError(f"cannot write checkpoints to '{self._folder}': {e.strerror}") from None
        self._own: set[Path] = set()

    def load(self, run: str) -> State | None:
        """Returns the last state of a run (FIT, REFIT), or None if there is none.

        Raises ResumeError if it cannot be read or belongs to another command.
        """
        file = self._file(run)
        # leftovers of a killed process
        for left in self._folder.glob(f".{file.name}.partial-*"):
            left.unlink(missing_ok=True)
        try:
            with safe_open(file, "pt") as f:
                header = json.loads((f.metadata() or {}).get("checkpoint", "{}"))
                self._check(header)
                tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError) as e:
            raise ResumeError(f"cannot read checkpoint '{file}': {e}; remove it to begin anew") from None
        self._own.add(file)
        state = State(tensors, header["values"])
        self._resumed(f"checkpoint '{file}': resumed after step {state.values['step']:,}")
        return state

    def _check(self, header: Mapping[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise ResumeError(f"checkpoint '{self._folder}' is not of format {FORMAT}; remove it")
        was = header["identity"]
        for key in sorted(was.keys() | self._identity.keys()):
            old, new = was.get(key), self._identity.get(key)
            if old != new:
                raise ResumeError(
                    f"checkpoint '{self._folder}' is of another training: {key} was {_shown(old)}, is "
                    f"{_shown(new)}; run the old command, or remove the folder to begin anew"
                )

    def due(self) -> bool:
        """Whether it is time to save."""
        return self._clock() >= self._next

    def save(self, run: str, state: State) -> None:
        """Writes the state of a run, which survives the process once this returns. Raises
        ResumeError.
        """
        header = {"format": FORMAT, "identity": self._identity, "values": state.values}
        tensors = {name: t.detach().cpu().contiguous() for name, t in state.tensors.items()}
        file = self._file(run)
        self._own.add(file)
        try:
            with atomic_path(file) as partial:
                save_file(tensors, partial, {"checkpoint": json.dumps(header)})
            sync(self._folder)
        except (OSError, SafetensorError) as e:
            raise ResumeError(f"cannot write checkpoint '{file}': {e}") from None
        self._next = self._clock() + self._every_s

    def remove(self) -> None:
        """Removes this command's states, and no other files, after it has written its result."""
        for file in self._own:
            file.unlink(missing_ok=True)
        (self._folder / LOCK).unlink(missing_ok=True)

    def _file(self, run: str) -> Path:
        return self._folder / f"{run}.safetensors"

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()


def _flat(found: Identity, before: str = "") -> dict[str, Any]:
    """Flattens nested keys, joined with dots, with values as JSON returns them."""
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[before + key] = json.loads(json.dumps(value))
    return flat


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
