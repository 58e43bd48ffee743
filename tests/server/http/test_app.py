"""Unknown paths and methods."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nothing", 404, "no page '/nothing'"),
        ("GET", "/v1/predict/", 404, "no page"),
        ("GET", "/v1/predict", 405, "method GET is not allowed here; use POST"),
        ("DELETE", "/v1/rank", 405, "use POST"),
        ("POST", "/livez", 405, "use GET"),
        ("GET", "/v2/models/dlrm/infer", 405, "use POST"),
        ("GET", "/v2/models/other", 404, "unknown model 'other'; this server has 'trivago'"),
        ("POST", "/v2/models/other/infer", 404, "unknown model 'other'"),
        ("GET", "/v2/models/dlrm/versions/9", 404, "model 'trivago' has no version '9'"),
        ("POST", "/v2/models/dlrm/versions/9/infer", 404, "model 'trivago' has no version '9'"),
        ("POST", "/v2/repository/models/dlrm/load", 403, "no admin token"),
        ("POST", "/v2/repository/models/dlrm/unload", 403, "no admin token"),
    ],
)
def test_unknown_paths_and_methods_are_json_errors(
    client: Any, method: str, path: str, status: int, message: str
) -> None:
    content = b'{"inputs": []}' if method == "POST" else None
    answer = client.send(method, path, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert message in answer.json()["error"]
    assert ("allow" in answer.headers) == (status == 405)
