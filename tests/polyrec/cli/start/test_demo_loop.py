"""`polyrec demo --loop` from the first day to the last one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyrec.cli.main import main
from polyrec.cli.start.demo_loop import BROKEN_DAY, DAYS
from polyrec.loop.folder import LoopFolder


@pytest.mark.long
def test_the_loop_learns_day_by_day_and_holds_the_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--loop", "--json", "--rows", "80000", "--out", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    days = told["days"]
    assert [d["day"] for d in days] == [*range(1, DAYS)]
    assert days[0]["looped"] == days[0]["frozen"]
    assert (days[BROKEN_DAY - 1]["state"], days[BROKEN_DAY - 1]["step"]) == ("held", "check")
    assert days[-1]["looped"] > days[-1]["frozen"] + 0.02
    folder = Path(told["folder"])
    iterations = LoopFolder(folder / "state").iterations()
    assert [i.state for i in iterations] == [d["state"] for d in days]
    assert sum(i.state == "promoted" for i in iterations) >= 3
    assert (folder / "loop.png").exists()
