"""Progress bars on standard error: one a phase over the data, one for training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from tqdm import tqdm

from models.training import Check


class PhaseBars:
    """A bar for each pass over the data; the next phase closes the last one's."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, name: str, rows: int | None) -> Callable[[int], object]:
        self.close()
        bar = tqdm(total=rows, desc=name, unit="row", unit_scale=True, file=sys.stderr, leave=False)
        self._bar = bar
        return bar.update

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> PhaseBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TrainingBar:
    """Steps taken, with the loss and what the validation rows last said."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, step: int, total: int, loss: float, check: Check | None) -> None:
        bar = self._bar
        if bar is None or total != bar.total:
            self.close()
            self._bar = bar = tqdm(total=total, desc="train", unit="step", file=sys.stderr)
        shown = {"loss": f"{loss:.4f}"}
        if check is not None:
            shown |= {"validation": f"{check.log_loss:.4f}", "auc": f"{check.auc:.4f}"}
        bar.set_postfix(shown, refresh=False)
        bar.update(step - bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
