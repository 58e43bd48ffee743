"""What every test stands on: a repeatable hypothesis, and the licensed data where a machine has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# No deadline: machines are shared, and a slow run is no defect. In CI the examples are a function of the
# test alone, so that a red run is red again on the same commit.
settings.register_profile("polyrec", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("polyrec")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; its licences keep it out of the repository."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real data is not on this machine: {folder} does not exist")
    return folder
