from __future__ import annotations

import os
import subprocess
import sys

import pytest

from polyrec.loadtest.machine import ahead_of_others, core_seconds, machine, times_held_off


def test_the_machine_is_said_in_words() -> None:
    words = machine()
    assert f"of {os.cpu_count()} usable" in words["cores"]
    assert words["processor"]
    assert all(isinstance(value, str) for value in words.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go ahead of others")
def test_priority_is_raised_inside_and_given_back() -> None:
    # in a session of its own: the one of the tests keeps its priority whatever happens
    code = (
        "import os\nfrom polyrec.loadtest.machine import ahead_of_others, core_seconds\n"
        "from polyrec.loadtest.machine import machine, times_held_off\n"
        "def nice(): return os.getpriority(os.PRIO_PROCESS, 0), machine()['scheduling']\n"
        "before = nice()\nwith ahead_of_others(): print(nice())\nassert nice() == before"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "-20" in done.stdout


def test_priority_that_cannot_be_had_is_one_line() -> None:
    if os.geteuid() == 0:
        pytest.skip("root may have it")
    with pytest.raises(Exception, match="takes root"), ahead_of_others():
        pass


def test_processor_time_grows_with_work() -> None:
    before, _ = core_seconds(os.getpid())
    assert sum(i * i for i in range(300_000))
    after, waited = core_seconds(os.getpid())
    assert after > before
    assert waited >= 0


def test_who_never_had_to_give_way_was_not_held_off() -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        before = times_held_off(os.getpid())
        assert times_held_off(sleeping.pid) >= 0
        assert times_held_off(os.getpid()) >= before
    finally:
        sleeping.communicate(b"\n")
