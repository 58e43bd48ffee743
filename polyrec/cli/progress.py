"""Progress on standard error, if it is a terminal: bars for passes over data and training steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from tqdm import tqdm

from polyrec.models.training.trainer import Check


class Bars:
    """Bars for models/training/pipeline.py; each new one closes the previous one."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def phase(self, name: str, rows: int | None) -> Callable[[int], object]:
        """Opens a bar of a pass over `rows` rows; returns the function that advances it."""
        return self._open(name, rows, "row").update

    def training(self, step: int, total: int, loss: float, check: Check | None) -> None:
        """Advances the bar of training, with the loss and the last validation figures."""
        bar = self._bar
        if bar is None or step == 1:
            bar = self._open("train", total, "step")
        shown = {"loss": f"{loss:.4f}"}
        if check is not None:
            shown |= {"validation": f"{check.log_loss:.4f}", "auc": f"{check.auc:.4f}"}
        bar.set_postfix(shown, refresh=False)
        bar.update(step - bar.n)

    def _open(self, name: str, total: int | None, unit: str) -> tqdm[NoReturn]:
        self.close()
        self._bar = tqdm(
            total=total, desc=name, unit=unit, unit_scale=unit == "row", file=sys.stderr, disable=None
        )
        return self._bar

    def close(self) -> None:
        """Closes the open bar, if any."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StatusLine:
    """A line with the current activity, for work of unknown length."""

    def __init__(self, name: str) -> None:
        self._bar: tqdm[NoReturn] = tqdm(
            desc=name, bar_format="{desc} {n} [{elapsed}] {postfix}", file=sys.stderr, disable=None
        )

    def show(self, activity: str) -> None:
        """Shows the next activity."""
        self._bar.set_postfix_str(activity, refresh=False)
        self._bar.update()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
