from __future__ import annotations

from benchmarks.http.revisions import FIGURES, table


def test_ratios_above_one_mean_faster_now_for_rates_and_for_times() -> None:
    before = [dict.fromkeys(FIGURES, 1000.0)] * 2
    after = [dict.fromkeys(FIGURES, 2000.0)] * 2
    rows = [line.split(" | ")[-1] for line in table(before, after).splitlines()[2:]]
    assert [row.split()[0] for row in rows] == ["2.000", "0.500", "2.000", "0.500", "0.500"]
