"""Schemathesis, which makes requests of the OpenAPI document, valid and not, against a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan
from tests.forking import start
from tests.server.placing import TOKEN, placed_plan

pytest.importorskip("schemathesis")

FOLDER = Path(__file__).parent
EXAMPLES = 25
HOOKS = "schemathesis_hooks"


@pytest.mark.long
def test_no_generated_request_contradicts_the_document(paged: Bundle, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    save_plan(placed_plan(paged, tmp_path), plan)
    tokens = tmp_path / "tokens.json"
    rights = ["priority", "quality"]
    client = {"name": "tester", "token": TOKEN, "rights": [*rights, "admin", "feedback"]}
    tokens.write_text(json.dumps({"clients": [client], "anonymous": {"rights": rights}}))
    settings = {"plan": plan, "tokens": tokens, "prediction_log": tmp_path / "log"}
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("--config-file", str(FOLDER / "schemathesis.toml"), "run"),
        # a drained server is not ready
        *("--exclude-path", "/v1/admin/drain", "--header", f"Authorization: Bearer {TOKEN}"),
        *("--max-examples", str(EXAMPLES), "--seed", "1", "--no-color", "--continue-on-failure"),
        *("--generation-database", "none"),
    ]
    with start(settings | {"drain_grace_s": 0, "default_budget_ms": 5000}) as server:
        done = subprocess.run(
            [*command, f"{server.url}/openapi.json"],
            env=os.environ | {"SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(FOLDER)},
            cwd=tmp_path,  # where it keeps what it found
            capture_output=True,
            text=True,
        )
        assert httpx.get(f"{server.url}/readyz").status_code == 200
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert found is not None, done.stdout[-2000:]
    assert int(found[1]) == int(found[2]) > 2000
