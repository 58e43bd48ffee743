"""Admin calls that fail: which of them may succeed later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from polyrec.client.admin import AdminCalls, AdminFailed, NoAnswer


class Failing(BaseHTTPRequestHandler):
    """Answers with the status that the target names."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        body = b'{"error": "no"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def failing() -> Iterator[Callable[[int], AdminCalls]]:
    """Calls to a server whose answers all have a status."""
    with HTTPServer(("127.0.0.1", 0), Failing) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield lambda status: AdminCalls(f"http://127.0.0.1:{http.server_port}/{status}", None, "token")
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_that_loads_or_has_too_much_to_do_may_answer_later(
    failing: Callable[[int], AdminCalls], status: int
) -> None:
    with failing(status) as calls, pytest.raises(NoAnswer, match=f"{status}: no"):
        calls.require_one_model()


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422])
def test_rejections_are_not_retried(failing: Callable[[int], AdminCalls], status: int) -> None:
    with failing(status) as calls, pytest.raises(AdminFailed, match=f"{status}: no") as raised:
        calls.get("rollout")
    assert not isinstance(raised.value, NoAnswer)
