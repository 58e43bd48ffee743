"""Settings of a prediction log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.data.prediction_log.log_format import MAX_WINDOW_S
from polyrec.models.files import Strict

LogShare = Annotated[float, Field(gt=0, le=1)]
FlushSeconds = Annotated[float, Field(gt=0, le=3600)]
KeptHours = Annotated[float, Field(gt=0, le=1e6)]
LogBytes = Annotated[int, Field(ge=2**20)]
WindowSeconds = Annotated[float, Field(gt=0, le=MAX_WINDOW_S)]
Unlabeled = Literal["negative", "leave_out"]


class PredictionLogSettings(Strict):
    """Settings of a prediction log, named as the flags `--prediction-log-...`.

    sample: share of the requests to log. leave_out: features written as missing. hash: features whose ids are
    replaced by keyed hashes. session: context feature whose values determine a request's file. flush_s:
    seconds between files. keep_h: number of hours to keep. max_bytes: size above which the oldest hours are
    removed. window_s, unlabeled: `LogRules` of a new log.
    """

    folder: Path
    sample: LogShare = 1.0
    leave_out: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    session: str | None = None
    flush_s: FlushSeconds = 30.0
    keep_h: KeptHours = 168.0
    max_bytes: LogBytes | None = None
    window_s: WindowSeconds = 3600.0
    unlabeled: Unlabeled = "negative"
