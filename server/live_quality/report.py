"""The live quality report: a file in the prediction log's folder, from the judge to the servers."""

from __future__ import annotations

import math
import os
import secrets
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from polyrec.models.evaluation.comparison import Interval
from polyrec.models.files import Strict

MAX_BYTES = 2**20
KEPT_S = 30 * 86400.0
Ends = tuple[float, float, float]
"""Value, and lower and upper end of its interval."""


class PathReport(Strict):
    """Live metrics of a path, or of the answers; None if undefined.

    difference: information gain minus the reference path's. confirmed: the same at a higher confidence level,
    with any one client's labels left out.
    """

    version: str
    information: Ends | None
    calibration: Ends | None
    auc: Ends | None
    difference: Ends | None
    confirmed: Ends | None


class CanaryReport(Strict):
    """A canary, on the requests that count for it.

    requests, positives: numbers of these. difference, confirmed: as in `PathReport`.
    """

    version: str
    requests: int
    positives: int
    difference: Ends | None = None
    confirmed: Ends | None = None


class Report(Strict):
    """The judge's findings.

    at_s: time of the report; since_s, until_s: period of the judged answers; labeled_s: the newest of them
    that has labels, None if none has; all Unix time in seconds. final_after_s: time from an answer until it
    is judged.
    paths: by name. served: metrics of the logged answers, by whichever path. reference: the path that
    `difference` compares with. late_positives: share of the positives with a time that came in the last
    tenth of the window. disputed: requests omitted because several clients labeled them or another
    request has their id. invalid: requests omitted because they could not be parsed again. differing:
    requests that the answering path now scores differently. trial: a rollout's canary. error: why there
    are no figures.
    """

    at_s: float
    since_s: float = 0.0
    until_s: float = 0.0
    labeled_s: float | None = None
    final_after_s: float = 0.0
    requests: int = 0
    rows: int = 0
    positives: int = 0
    clients: dict[str, int] = Field(default_factory=dict)
    disputed: int = 0
    invalid: int = 0
    differing: int = 0
    late_positives: float | None = None
    reference: str = ""
    paths: dict[str, PathReport] = Field(default_factory=dict)
    served: PathReport | None = None
    trial: CanaryReport | None = None
    error: str | None = None


class LiveQualityDocument(Report):
    """The last report, for the status page. value_changes: resulting changes of the paths' values."""

    value_changes: dict[str, float]


def ends(interval: Interval) -> Ends | None:
    """Returns an interval as the report has it; None if it is undefined."""
    found = interval.value, interval.low, interval.high
    return found if all(map(math.isfinite, found)) else None


def report_file(folder: Path, digest: str) -> Path:
    """Returns the file of the report for settings with this digest."""
    return folder / f".live-quality-{digest}.json"


def remove_old_reports(folder: Path, now_s: float) -> None:
    """Removes reports that were not renewed for KEPT_S. now_s: Unix time in seconds.

    Lock files are kept: if one were removed while held, another process could lock a new one at the same
    time.
    """
    for file in folder.glob(".live-quality-*.json*"):
        with suppress(OSError):
            if file.stat().st_mtime < now_s - KEPT_S:
                file.unlink()


def write_report(file: Path, report: Report) -> None:
    """Writes a report atomically. Raises OSError."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(report.model_dump_json())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def read_report(file: Path) -> Report | None:
    """Reads a report; returns None if there is no readable one."""
    try:
        if file.stat().st_size > MAX_BYTES:
            return None
        return Report.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
