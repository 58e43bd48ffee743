"""The examples in docs/protocol.md are sent to a server as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np

from polyrec.server.access.tokens import load_tokens

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
EXAMPLES = re.findall(r"^```json POST (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_of_a_tokens_file_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```json tokens\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "tokens.json"
    file.write_text(example)
    tokens = load_tokens(file)
    assert [client.name for client in tokens.clients] == ["shop", "ranking", "on-call"]
    assert tokens.anonymous is not None


def test_every_example_is_answered_and_a_ranking_is_its_plain_request(http: httpx.Client) -> None:
    answers = []
    for path, body in EXAMPLES:
        answer = http.post(path, content=body)
        assert answer.status_code == 200, f"{body}\n{answer.text}"
        answers.append(answer.json()["outputs"][0]["data"])
    plain, once, twice = answers
    np.testing.assert_allclose(once, plain, atol=1e-6)
    assert len(twice) == 3
