from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.routing.mprec.paths import (
    CHIPS,
    KINDS,
    Assumptions,
    accuracy,
    devices_of,
    make_path,
    matching,
)
from benchmarks.routing.mprec_machines import MODELS, PublishedModel, cost

KAGGLE, TERABYTE = MODELS
BASE = Assumptions()


def test_select_stands_between_table_and_dhe() -> None:
    for model in MODELS:
        table, select, dhe = (cost(model, kind, 4.0 * model.width) for kind in KINDS[:3])
        assert table[0].flops < select[0].flops < dhe[0].flops
        assert select[1].tables["all"] < 0.05 * table[1].tables["all"]
        assert accuracy(model, "table", 1.0) < accuracy(model, "select", 1.0) < accuracy(model, "dhe", 1.0)
        assert accuracy(model, "hybrid", 0.0) == accuracy(model, "table", 1.0)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_chip_of_an_ipu_holds_no_tables(model: PublishedModel) -> None:
    fits = {}
    for label, (name, chips) in CHIPS.items():
        device = devices_of(name, chips, BASE)[1]
        fits[label] = {kind for kind in KINDS if make_path(model, kind, device, name, BASE)}
    assert fits["V100"] == fits["TPU v3 board"] == set(KINDS)
    assert fits["GC200"] == fits["IPU-POD16"] == {"select", "dhe"}


@pytest.mark.parametrize("rows", [128, 4096])
def test_more_chips_and_faster_devices_never_serve_less(rows: int) -> None:
    found = matching(KAGGLE, BASE, rows)
    assert found["CPU"]["table"] == 1.0
    for one, many in (("TPU v3 chip", "TPU v3 board"), ("GC200", "IPU-M2000"), ("IPU-M2000", "IPU-POD16")):
        for kind in KINDS:
            if (few := found[one][kind]) is not None:
                more = found[many][kind]
                assert more is not None
                assert more > few
    faster = matching(KAGGLE, replace(BASE, start_s=BASE.start_s / 2), rows)
    assert all((v or 0) >= (found["V100"][kind] or 0) for kind, v in faster["V100"].items())
