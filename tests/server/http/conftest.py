from __future__ import annotations

from collections.abc import Iterator

import pytest

from polyrec.server.app.run import Child
from tests.server.http.wire import Wire


@pytest.fixture(scope="module")
def wires(server: Child) -> Iterator[tuple[Wire, Wire]]:
    pair = Wire(server), Wire(server)
    yield pair
    for wire in pair:
        wire.close()
