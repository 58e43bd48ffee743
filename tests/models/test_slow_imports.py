from __future__ import annotations

import gc

import pytest

from polyrec.models.slow_imports import slow_imports


def test_the_garbage_collector_is_off_during_imports_and_on_again_after_a_failed_one() -> None:
    def fail() -> None:
        with slow_imports():
            assert not gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()
