from __future__ import annotations

import os
import signal

import pytest

from polyrec.measure.profile.process import Worker
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import single_path_plan


def test_an_interrupt_ends_a_worker_without_a_word_of_it(
    bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = single_path_plan(bundle.path, "table", "onnx").paths
    worker = Worker(path)
    process = worker._process
    # Ctrl-C reaches the terminal's group, of which a starting interpreter would print a traceback
    assert os.getpgid(process.pid) == process.pid
    with pytest.raises(KeyboardInterrupt), worker:
        raise KeyboardInterrupt
    assert process.returncode == -signal.SIGKILL
    assert capfd.readouterr().err == ""


def test_a_worker_whose_parent_was_killed_ends_without_a_word(
    bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = single_path_plan(bundle.path, "table", "onnx").paths
    process = Worker(path)._process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()  # before the answer
    process.stdin.write('{"do": "measure"}\n')
    process.stdin.close()
    assert process.wait() == 0
    assert capfd.readouterr().err == ""
