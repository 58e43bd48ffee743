from __future__ import annotations

from collections.abc import Iterator

import pytest

from polyrec.server.child import ServerProcess
from tests.server.http.connection.wire import Wire


@pytest.fixture(scope="module")
def wires(server: ServerProcess) -> Iterator[tuple[Wire, Wire]]:
    pair = Wire(server), Wire(server)
    yield pair
    for wire in pair:
        wire.close()
