"""Manages the folder of a loop: its plan, the records of iterations, and the commands of operators.

    STATE/plan.json               always the serving plan: start servers with it
    STATE/iterations/0007/        iteration 7: record.json, plan.json, bundle/, train.log, checkpoint/
    STATE/control/hold-publish    the loop stops before this step while the file exists; contains the reason
    STATE/control/force-7         a command for iteration 7, or drop-7; the loop removes the file
    STATE/lock                    locked by the loop that runs here

Every file is written atomically. Only the loop writes records; `polyrec loop hold` and other commands write
only below `control/`, so neither overwrites the other's files.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from polyrec.loop.iteration import STEPS, Iteration, LoopError, Step
from polyrec.models.files import read_json, validate_as, write_text

RECORD, PLAN, BUNDLE, TRAIN_LOG, CHECKPOINT = "record.json", "plan.json", "bundle", "train.log", "checkpoint"
Command = Literal["force", "drop"]


class LoopFolder:
    """A loop's folder. Raises OSError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / PLAN
        self._iterations, self._control = path / "iterations", path / "control"

    def create(self) -> None:
        """Creates the folder if it does not exist."""
        for folder in (self._iterations, self._control):
            folder.mkdir(parents=True, exist_ok=True)

    def require(self) -> None:
        """Raises LoopError unless a loop was started here."""
        if not self._control.is_dir():
            raise LoopError(f"'{self.path}' is not a loop's folder; `polyrec loop run --state` makes one")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other loops. Raises LoopError if one is running."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LoopError(f"another loop runs in '{self.path}'") from None
            yield

    @property
    def is_running(self) -> bool:
        """Whether a loop is running in the folder."""
        try:
            with self.locked():
                return False
        except LoopError:
            return True

    def folder_of(self, number: int) -> Path:
        """Returns the folder of an iteration."""
        return self._iterations / f"{number:04}"

    def iterations(self, max_count: int | None = None) -> list[Iteration]:
        """Reads the records of iterations, oldest first. max_count: number of newest ones to read.

        Raises LoopError.
        """
        numbered = (f for f in self._iterations.glob(f"*/{RECORD}") if f.parent.name.isdecimal())
        files = sorted(numbered, key=lambda file: int(file.parent.name))
        found = []
        for file in files if max_count is None else files[-max_count:]:
            what = f"record '{file}'"
            found.append(validate_as(Iteration, read_json(file, what, LoopError), what, LoopError))
        return found

    def last(self) -> Iteration | None:
        """Reads the newest record. Raises LoopError."""
        return next(iter(self.iterations(1)), None)

    def save(self, iteration: Iteration) -> None:
        """Writes a record."""
        folder = self.folder_of(iteration.number)
        folder.mkdir(exist_ok=True)
        write_text(folder / RECORD, iteration.model_dump_json(indent=1) + "\n")

    def remove_bundles(self, keep: set[int]) -> None:
        """Removes the bundles and checkpoints of all iterations except `keep`; records stay."""
        for folder in self._iterations.iterdir():
            if folder.name.isdecimal() and int(folder.name) not in keep:
                for name in (BUNDLE, CHECKPOINT):
                    shutil.rmtree(folder / name, ignore_errors=True)

    def hold(self, step: Step, reason: str) -> None:
        """Makes the loop stop before a step, also one that is yet to be started here.

        Raises LoopError for a folder with other files.
        """
        if not self.path.is_dir() or not any(self.path.iterdir()):
            self.create()
        self.require()
        write_text(self._control / f"hold-{step}", reason + "\n")

    def release(self, step: Step) -> None:
        """Lets the loop execute a held step again. Raises LoopError if it was not held."""
        try:
            (self._control / f"hold-{step}").unlink()
        except FileNotFoundError:
            raise LoopError(f"step '{step}' is not held") from None

    def holds(self) -> dict[Step, str]:
        """Returns the held steps with their reasons."""
        found: dict[Step, str] = {}
        for step in STEPS:
            file = self._control / f"hold-{step}"
            if file.is_file():
                found[step] = file.read_text(encoding="utf-8", errors="replace").strip()
        return found

    def controls(self) -> set[str]:
        """Returns the names of all files below `control/`."""
        return {file.name for file in self._control.iterdir()}

    def give(self, command: Command, number: int) -> None:
        """Leaves a command for an iteration."""
        write_text(self._control / f"{command}-{number}", "")

    def has(self, command: Command, number: int) -> bool:
        """Whether there is a command for an iteration."""
        return (self._control / f"{command}-{number}").exists()

    def remove(self, command: Command, number: int) -> None:
        """Removes a command that was executed."""
        (self._control / f"{command}-{number}").unlink(missing_ok=True)
