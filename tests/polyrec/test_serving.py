from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import polyrec
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan, single_path_plan


def test_a_plan_is_served_until_the_block_ends(bundle_dir: Path, tmp_path: Path) -> None:
    save_plan(single_path_plan(bundle_dir, "table", "onnx"), tmp_path / "plan.json")
    with polyrec.serve(tmp_path / "plan.json", default_budget_ms=60_000) as server:
        with server.client() as client:
            assert client.ready()
            assert client.predict([{"item": "a"}]).path == "table@cpu"
        pid = server.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    server.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"lanes": 0}, "LANES"), ({"polish": "priced"}, "POLYREC_POLISH"), ({"runtime": "abacus"}, "abacus")],
)
def test_reason_for_a_failed_start_is_reported(
    bundle_dir: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(polyrec.PolyrecError, match=message) as raised:
        polyrec.serve(bundle_dir, **settings)
    assert "\n" not in str(raised.value)


def test_a_missing_bundle_or_plan_is_reported(tmp_path: Path) -> None:
    with pytest.raises(polyrec.PolyrecError, match="no bundle or plan"):
        polyrec.serve(tmp_path / "nothing")


def test_a_server_ends_with_its_program(bundle: Bundle) -> None:
    program = f"import polyrec; print(polyrec.serve({str(bundle.path)!r}).pid)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not Path(f"/proc/{done.stdout.strip()}").exists()
