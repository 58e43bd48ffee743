from __future__ import annotations

import os
import subprocess
import sys

import pytest

from polyrec.loadtest.machine import core_seconds, involuntary_switches, machine, raised_priority


def test_the_machine_is_described() -> None:
    words = machine()
    assert f"of {os.cpu_count()} usable" in words["cores"]
    assert words["processor"]
    assert all(isinstance(value, str) for value in words.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go ahead of others")
def test_priority_is_raised_and_restored() -> None:
    # in a session of its own: the one of the tests keeps its priority whatever happens
    code = (
        "import os\nfrom polyrec.loadtest.machine import raised_priority, core_seconds\n"
        "from polyrec.loadtest.machine import machine, involuntary_switches\n"
        "def nice(): return os.getpriority(os.PRIO_PROCESS, 0), machine()['scheduling']\n"
        "before = nice()\nwith raised_priority(): print(nice())\nassert nice() == before"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "-20" in done.stdout


def test_missing_permission_for_priority_is_an_error_of_one_line() -> None:
    if os.geteuid() == 0:
        pytest.skip("root may have it")
    with pytest.raises(Exception, match="takes root"), raised_priority():
        pass


def test_processor_time_grows_with_work() -> None:
    before, _ = core_seconds(os.getpid())
    assert sum(i * i for i in range(300_000))
    after, waited = core_seconds(os.getpid())
    assert after > before
    assert waited >= 0


def test_involuntary_switches_are_those_that_the_process_reports_itself() -> None:
    script = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw, flush=True); input()"
    waiting = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert waiting.stdout is not None
        reported = int(waiting.stdout.readline())
        # it may have been preempted once more on its way to `input`
        assert reported <= involuntary_switches(waiting.pid) <= reported + 5
    finally:
        waiting.communicate("\n")
