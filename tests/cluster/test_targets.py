from __future__ import annotations

import pytest

from polyrec.cluster.targets import target_of


@pytest.mark.parametrize(
    ("raw", "path", "query", "target"),
    [
        (b"/v1/predict", "/v1/predict", b"a=%20", "/v1/predict?a=%20"),
        # decoded once already: as a target it would be /v1/admin/reload
        (b"/v1/%2561dmin/reload", "/v1/%61dmin/reload", b"", "/v1/%2561dmin/reload"),
        (None, "/v1/%61dmin/reload", b"", "/v1/%2561dmin/reload"),
        (b"/v1/a%3Fb", "/v1/a?b", b"", "/v1/a%3Fb"),
    ],
)
def test_a_target_is_handed_on_as_the_client_wrote_it(
    raw: bytes | None, path: str, query: bytes, target: str
) -> None:
    assert target_of({"raw_path": raw, "path": path, "query_string": query}) == target
