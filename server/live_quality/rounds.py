"""Runs a judge in rounds: settings from the server's pipe, a lock, rests, and the report file.

Settings are records on standard input, one at the start and one for each new plan. The process exits when the
server closes the pipe or dies. It sleeps after each piece of work, so that it uses at most WORK_SHARE of a
core. If several servers have the same log and plan, one judge holds a file lock and works, and the others
wait until it exits.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import time
from contextlib import suppress

from polyrec.models.errors import PolyrecError
from polyrec.server.live_quality.judge import Judge
from polyrec.server.live_quality.report import Report, remove_old_reports, report_file, write_report
from polyrec.server.live_quality.settings import JudgeSettings
from polyrec.server.record_pipe import unframe

log = logging.getLogger("polyrec.live_quality")

READ_BYTES = 2**16
WORK_SHARE = 0.1
"""Maximum share of a core's time, even of an idle core, since cores share caches and memory."""
LONGEST_REST_S = 10.0


class ServerGone(Exception):
    """Raised if the server has closed the pipe."""


class SettingsPipe:
    """Reads settings from the server's pipe. settings: the newest ones, None before the first."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._buffer = bytearray()
        self.settings: JudgeSettings | None = None

    def wait(self, seconds: float) -> bool:
        """Waits; returns True early if new settings arrive, else False. Raises ServerGone."""
        give_up_s = time.monotonic() + seconds
        while True:
            left_s = max(0.0, give_up_s - time.monotonic())
            if select.select([self._fd], [], [], left_s)[0]:
                more = os.read(self._fd, READ_BYTES)
                if not more:
                    raise ServerGone
                self._buffer += more
                # an empty record only shows that the server is alive
                if settings := list(filter(None, unframe(self._buffer))):
                    self.settings = JudgeSettings.model_validate_json(settings[-1])
                    return True
            elif not left_s:
                return False


class NewSettings(Exception):
    """Raised if new settings arrive during work."""


def run(fd: int) -> None:
    """Runs the judge until the other end of the pipe is closed."""
    pipe = SettingsPipe(fd)
    with suppress(ServerGone):
        while pipe.settings is None:
            pipe.wait(60.0)
        while True:
            with suppress(NewSettings), JudgeLock(pipe):
                _judge_in_rounds(pipe)


class JudgeLock:
    """File lock that excludes other judges with the same settings."""

    def __init__(self, pipe: SettingsPipe) -> None:
        assert pipe.settings is not None
        settings = pipe.settings
        self._pipe = pipe
        self._file = report_file(settings.folder, settings.digest).with_suffix(".lock")
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._pipe.wait(1.0):
                    os.close(self._fd)
                    raise NewSettings from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _judge_in_rounds(pipe: SettingsPipe) -> None:
    """Scores and reports in rounds. Raises NewSettings or ServerGone."""
    settings = pipe.settings
    assert settings is not None

    def rest(worked_s: float) -> None:
        if pipe.wait(rest_after(worked_s)):
            raise NewSettings

    remove_old_reports(settings.folder, time.time())
    judge: Judge | None = None
    file = report_file(settings.folder, settings.digest)
    while True:
        now_s = time.time()
        try:
            judge = judge or Judge(settings, rest)
            report = judge.round(now_s)
        except (PolyrecError, OSError) as e:
            log.error("live quality is not measured: %s", e)
            report = Report(at_s=now_s, reference=settings.reference, error=str(e))
        try:
            write_report(file, report)
        except OSError as e:
            log.error("the report of live quality cannot be written: %s", e.strerror)
        if pipe.wait(settings.every_s):
            raise NewSettings


def rest_after(worked_s: float) -> float:
    """Returns the seconds to sleep after work, so that work takes WORK_SHARE of a core."""
    return min(LONGEST_REST_S, worked_s * (1 / WORK_SHARE - 1))
