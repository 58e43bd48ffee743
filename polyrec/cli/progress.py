"""Shows progress on standard error: bars on a terminal, lines elsewhere for work that takes long.

Training shows rows/s, the loss, the last validation figures and the time left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, TextIO

from tqdm import tqdm

from polyrec.models.training.trainer import StepReport

LINE_EVERY_S = 30.0


class ProgressBars:
    """Progress bars for models/training/pipeline.py; each new bar closes the previous one.

    stream: output, by default standard error. If it is not a terminal, training writes a line every
    `line_every_s` seconds instead, and another when it is complete.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        line_every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._line_every_s, self._clock = line_every_s, clock
        self._bar: tqdm[NoReturn] | None = None
        self._speed = _Speed(clock(), 0)
        self._line_at: float | None = None

    def phase(self, name: str, rows: int | None) -> Callable[[int], object]:
        """Opens a bar for a pass over `rows` rows; returns the function that advances it."""
        self._line_at = None
        return self._open(name, rows, "row").update

    def training(self, report: StepReport) -> None:
        """Shows a step of a training; the first step starts a new bar."""
        now = self._clock()
        bar = self._bar
        if bar is None or self._line_at is None or report.step <= self._speed.step:
            bar = self._open("train", report.total, "step")
            # the first step has just been taken, so rows/s count the steps after it
            self._speed, self._line_at = _Speed(now, report.step), now + self._line_every_s
            bar.initial = bar.n = report.step
        else:
            self._speed.add(report)
        if not self._stream.isatty():
            if now >= self._line_at or (report.step == report.total and self._speed.shown):
                self._line_at, self._speed.shown = now + self._line_every_s, True
                print(
                    f"train: step {report.step:,} of {report.total:,}, {self._speed.text(report, now)}",
                    file=self._stream,
                    flush=True,
                )
            return
        bar.set_postfix_str(self._speed.text(report, now), refresh=False)
        bar.update(report.step - bar.n)

    def _open(self, name: str, total: int | None, unit: str) -> tqdm[NoReturn]:
        self.close()
        self._bar = tqdm(
            total=total,
            desc=name,
            unit=unit,
            unit_scale=unit == "row",
            file=self._stream,
            disable=None,
            bar_format="{desc} {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} {postfix}"
            if unit == "step"
            else None,
        )
        return self._bar

    def close(self) -> None:
        """Closes the open bar, if any."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Speed:
    """Computes rows/s and the time left of a training, from the steps since it began in this process."""

    def __init__(self, begin: float, step: int) -> None:
        self.step, self.shown = step, False
        self._begin, self._first, self._rows = begin, step, 0

    def add(self, report: StepReport) -> None:
        """Counts a step."""
        self.step = report.step
        self._rows += report.rows

    def text(self, report: StepReport, now: float) -> str:
        """Returns rows/s, loss, validation figures and the time left as text."""
        seconds, steps = now - self._begin, self.step - self._first
        parts = [f"{self._rows / seconds:,.0f} rows/s"] if seconds and steps else []
        parts.append(f"loss {report.loss:.4f}")
        if report.check is not None:
            parts.append(f"validation {report.check.log_loss:.4f}, AUC {report.check.auc:.4f}")
        if seconds and steps:
            parts.append(f"{_clock_time((report.total - report.step) * seconds / steps)} left")
        return ", ".join(parts)


def _clock_time(seconds: float) -> str:
    """Formats a duration as hours:minutes:seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


class StatusLine:
    """A line that shows the current activity, for work of unknown length.

    stream: output, by default standard error. If it is not a terminal, a line is written every
    `line_every_s` seconds instead.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        line_every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._line_every_s, self._clock = line_every_s, clock
        self._begin = self._written = clock()
        self._shown = 0
        self._bar: tqdm[NoReturn] = tqdm(
            desc=name, bar_format="{desc} {n} [{elapsed}] {postfix}", file=self._stream, disable=None
        )

    def show(self, activity: str) -> None:
        """Shows the next activity."""
        self._shown += 1
        self._bar.set_postfix_str(activity, refresh=False)
        self._bar.update()
        now = self._clock()
        if self._bar.disable and now >= self._written + self._line_every_s:
            self._written = now
            done = f"{self._name}: {self._shown} [{_clock_time(now - self._begin)}] {activity}"
            print(done, file=self._stream, flush=True)

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
