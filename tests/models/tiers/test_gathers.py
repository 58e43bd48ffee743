from __future__ import annotations

import pytest

from polyrec.models.tiers.gathers import Gathers


def test_a_gather_that_began_before_is_waited_for() -> None:
    gathers = Gathers()
    with gathers.gathering():
        number = gathers.begun
        assert not gathers.ended(number)
        with gathers.gathering():
            assert not gathers.close(0.01)
    assert gathers.ended(number)
    assert gathers.close(0)
    with pytest.raises(OSError, match="closed"), gathers.gathering():
        pass
