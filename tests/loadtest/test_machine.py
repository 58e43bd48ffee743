from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.machine import ahead_of_others, machine


def test_the_machine_is_said_in_words() -> None:
    words = machine()
    assert f"of {os.cpu_count()} usable" in words["cores"]
    assert words["processor"]
    assert all(isinstance(value, str) for value in words.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go ahead of others")
def test_priority_is_raised_inside_and_given_back() -> None:
    # in a session of its own: the one of the tests keeps its priority whatever happens
    code = (
        "import os\nfrom loadtest.machine import ahead_of_others, machine\n"
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
