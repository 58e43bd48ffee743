from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.server.metrics import metrics_page
from polyrec.server.metrics.metrics import Metrics


def test_the_page_is_up_to_date() -> None:
    assert metrics_page.main(["--check"]) == 0


def test_every_metric_is_on_the_page() -> None:
    for family in Metrics().families:
        assert f"| `{family.exposed}` | {family.kind} |" in metrics_page.page()


def test_an_outdated_page_is_reported_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_page, "PAGE", tmp_path / "metrics.md")
    assert metrics_page.main(["--check"]) == 1
    (tmp_path / "metrics.md").write_text("old")
    assert metrics_page.main(["--check"]) == 1
    assert "python -m polyrec.server.metrics.metrics_page" in capsys.readouterr().err
    assert metrics_page.main([]) == 0
    assert metrics_page.main(["--check"]) == 0
    assert metrics_page.main(["--what"]) == 2
