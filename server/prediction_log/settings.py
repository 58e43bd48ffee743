"""Settings of a prediction log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from polyrec.models.data.prediction_log import MOST_WINDOW_S
from polyrec.models.files import Strict

MOST_KEPT_H = 1e6


class PredictionLogSettings(Strict):
    """Settings of a prediction log.

    sample: share of the requests to log. left_out: features written as missing; hashed: features whose ids
    are replaced by keyed hashes. session: context feature by whose value requests go to files. flush_s:
    seconds between files. keep_h: hours that are kept; most_bytes: size beyond which the oldest are removed.
    window_s, unlabeled: `LogRules` of a new log.
    """

    folder: Path
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    left_out: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    session: str | None = None
    flush_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    keep_h: Annotated[float, Field(gt=0, le=MOST_KEPT_H)] = 168.0
    most_bytes: Annotated[int, Field(ge=2**20)] | None = None
    window_s: Annotated[float, Field(gt=0, le=MOST_WINDOW_S)] = 3600.0
    unlabeled: Literal["negative", "leave_out"] = "negative"
