from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

from polyrec.models.allocator import retain_freed_memory

FAULTS = """
import resource, sys
from polyrec.models.allocator import retain_freed_memory
if sys.argv[1] == "keep":
    retain_freed_memory()
[b"x" * size for size in [12 * 2**20] * 6]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    [b"x" * size for size in [12 * 2**20] * 6]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    pages = 6 * 12 * 2**20 // resource.getpagesize()
    assert faults("leave") > 10 * pages
    assert faults("keep") < pages


def test_setting_it_twice_does_no_harm() -> None:
    assert retain_freed_memory() == retain_freed_memory()
