from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.tiers.tiered_table import TieredTable


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_rows_are_those_of_the_array_in_bounded_memory(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = np.random.default_rng(seed)
    total, width = int(random.integers(1, 4000)), int(random.choice([1, 16, 64]))
    rows = random.standard_normal((total, width)).astype(np.float32)
    counts = random.zipf(1.3, total).clip(max=1000) if random.random() < 0.7 else None
    memory = int(random.integers(16, 200)) * 1024
    with TieredTable(rows, memory, tmp_path_factory.getbasetemp(), counts) as table:
        assert table.memory_bytes <= memory or memory >= rows.nbytes
        for _ in range(5):
            ids = random.integers(0, total, int(random.integers(0, 1500)))
            np.testing.assert_array_equal(table.gather(ids), rows[ids])
            changed = np.unique(random.integers(0, total, int(random.integers(0, 20))))
            rows[changed] = random.standard_normal((changed.size, width))
            table.update(changed, rows[changed])
        ids = np.arange(total)
        np.testing.assert_array_equal(table.gather(ids), rows)


def test_threads_share_a_table(tmp_path: Path) -> None:
    rows = np.repeat(np.arange(20_000, dtype=np.float32)[:, None], 64, axis=1)
    wrong: list[int] = []
    with TieredTable(rows, 300_000, tmp_path, np.arange(20_000)[::-1].copy()) as table:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(10):
                ids = np.minimum(random.zipf(1.2, 300) - 1, 19_999)
                wrong.append(int((table.gather(ids) != rows[ids]).sum()))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        levels = table.figures().levels
    assert len(wrong) == 30
    assert not any(wrong)
    assert levels["host"].lookups == 30 * 300
    assert not list(tmp_path.iterdir())


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tiered-table.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    told: dict[str, Any] = {}
    exec(example, told)
    np.testing.assert_array_equal(told["vectors"], told["rows"][told["ids"]])


@pytest.mark.parametrize("ids", [[3, 9], [9, 3]])
def test_arrays_of_an_update_may_change_after_it(tmp_path: Path, ids: list[int]) -> None:
    rows, given = np.zeros((4000, 16), np.float32), np.array(ids)
    with TieredTable(rows, 65_536, tmp_path) as table:
        views = table._stack.views
        # a reader that began before: the update stays a layer over the tiers
        view = views.enter()
        values = np.repeat(np.array(ids, np.float32)[:, None], 16, axis=1)
        table.update(given, values)
        given[:], values[:] = 20, 7
        assert table.gather(np.array([3, 9, 20]))[:, 0].tolist() == [3, 9, 0]
        views.leave(view)


def test_invalid_arguments_are_reported(tmp_path: Path) -> None:
    rows = np.zeros((10, 4), np.float32)
    with pytest.raises(ValueError, match=r"counts must have the shape \(10,\)"):
        TieredTable(rows, 10**6, tmp_path, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="rows must be float32"):
        TieredTable(np.zeros(3, np.float32), 10**6, tmp_path)
    with pytest.raises(ValueError, match="at least 16384"):
        TieredTable(rows, 100, tmp_path)
    with TieredTable(rows, 10**6, tmp_path) as table:
        with pytest.raises(IndexError, match="0 to 9"):
            table.gather(np.array([10]))
        with pytest.raises(ValueError, match="values must be"):
            table.update(np.array([1]), rows)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.2])
def test_promised_bytes_are_kept_and_used(tmp_path: Path, share: float) -> None:
    rows = np.zeros((143_542, 64), np.float32)
    memory = int(rows.nbytes * share)
    with TieredTable(rows, memory, tmp_path, np.arange(len(rows))[::-1].copy()) as table:
        # memory is mapped in whole pages of 4,096 bytes
        assert min(0.9 * memory, memory - 8192) < table.memory_bytes <= memory
