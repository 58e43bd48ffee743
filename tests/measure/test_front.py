from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.measure.front import measure_front
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import single_path_plan


@pytest.mark.long
def test_the_end_of_its_server_is_no_warning(
    bundle: Bundle, bundle_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (path,) = single_path_plan(bundle_dir, "table", "onnx").paths
    assert measure_front(path, bundle, seconds=0.1).query_s > 0
    assert capfd.readouterr().err == ""
