"""The pipe never waits for its exporter, and its end is bounded."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from polyrec.server.record_pipe import PIPE_BYTES, UNSENT_BYTES, RecordPipe, close_pipes
from polyrec.server.tracing.tracer import exporter_pipe

RECORD = b"\0" * 2**16


@pytest.fixture
def pipe() -> Iterator[RecordPipe]:
    # a local address without a listener; nothing complete is ever sent to it
    pipe = exporter_pipe(os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    yield pipe
    close_pipes([pipe])


def test_an_exporter_that_stands_still_costs_records_never_time(
    pipe: RecordPipe, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(pipe.pid, signal.SIGSTOP)
    most = (PIPE_BYTES + UNSENT_BYTES) // len(RECORD)
    with caplog.at_level(logging.WARNING):
        for _ in range(2 * most):
            pipe.send(RECORD)
    assert most - 2 <= 2 * most - pipe.dropped <= most + 2
    assert [r.message for r in caplog.records] == [
        "the exporter of traces does not keep up: traces are dropped; sample fewer"
    ]
    os.kill(pipe.pid, signal.SIGKILL)


def test_a_dead_exporter_is_logged_once(pipe: RecordPipe, caplog: pytest.LogCaptureFixture) -> None:
    os.kill(pipe.pid, signal.SIGKILL)
    os.waitid(os.P_PID, pipe.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        pipe.send(RECORD)
    assert not pipe.alive
    assert [r.message for r in caplog.records] == [
        f"the exporter of traces (process {pipe.pid}) ended: no more traces"
    ]
