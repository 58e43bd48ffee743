"""The training plan: what binds, what fits, and what is proposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrec.cli.main import main
from polyrec.planner.training.description import TrainingDescription, TrainingPlanError, load_description
from polyrec.planner.training.explain import page
from polyrec.planner.training.popularity import described_popularity
from polyrec.planner.training.training_plan import (
    TrainingPlan,
    node_counts,
    option_of,
    plan_training,
)

DISK = {"bytes": "4TB", "reads_per_s": 500_000, "read_bytes_per_s": "3GB", "write_bytes_per_s": "2GB"}
DRAM: dict[str, Any] = {
    "name": "dram", "rows_per_s": 30_000, "memory": "64GB", "bytes_per_s": "3GB", "price_per_hour": 2,
}  # fmt: skip
TABLES = [
    {"name": "item", "rows": 2_000_000_000, "zipf": 1.05},
    {"name": "user", "rows": 500_000_000, "zipf": 0.9, "role": "context"},
    {"name": "place", "rows": 10_000, "zipf": 0.8, "lookups": 3},
]


def described(**changes: Any) -> dict[str, Any]:
    raw = {"tables": TABLES, "width": 64, "batch_rows": 8192, "net_bytes": "4MB", "nodes": [DRAM], **changes}
    return {key: value for key, value in raw.items() if value is not None}


def planned(**changes: Any) -> TrainingPlan:
    description = TrainingDescription.model_validate(described(**changes))
    return plan_training(description, described_popularity(description.tables, description.rows_per_request))


def test_memory_decides_how_many_nodes_without_a_disk_and_speed_with_one() -> None:
    tiered = {**DRAM, "name": "tiered", "disk": DISK, "price_per_hour": 2.5}
    plan = planned(nodes=[DRAM, tiered], rows_per_s=30_000)
    assert plan.min_nodes["dram"] == 11  # 2.5e9 rows of 260 bytes in 64 GB each, less a GiB
    assert plan.min_nodes["tiered"] is not None
    assert plan.min_nodes["tiered"] <= 2
    assert plan.chosen.node == "tiered"
    assert plan.chosen.rows_per_s >= 30_000


def test_every_row_has_one_owner() -> None:
    slow = {"bytes": "64GB", "bytes_per_s": "20GB"}
    plan = planned(nodes=[{**DRAM, "slow_memory": slow, "disk": DISK}])
    for options in plan.fastest.values():
        for option in options:
            for table in TABLES:
                places = option.tables[table["name"]]
                assert sum(n for where, n in places.items() if where != "replicated") == table["rows"]


def test_a_slow_link_binds_and_sending_less_helps() -> None:
    small = [{**table, "rows": table["rows"] // 1000 or 1} for table in TABLES]
    fast, slow = (
        planned(
            tables=small,
            nodes=[{**DRAM, "bytes_per_s": b, "most": 8}],
            rows_per_s=1e9,
            rows_per_request=8,
            net_bytes=1000,
        )
        for b in ("100GB", "10MB")
    )
    assert (fast.chosen.binds, slow.chosen.binds) == ("compute", "network")
    assert slow.baseline is not None
    assert slow.chosen.sent_per_row < slow.baseline.sent_per_row / 2
    assert slow.chosen.rows_per_s > slow.baseline.rows_per_s


def test_replicas_pay_on_two_nodes_with_a_slow_link() -> None:
    hot = [{"name": "item", "rows": 1_000_000, "zipf": 1.3}]
    node = {**DRAM, "bytes_per_s": "100MB", "memory": "2GB", "most": 2}
    plan = planned(tables=hot, nodes=[node], rows_per_s=1e9)
    assert plan.chosen.nodes == 2
    assert plan.chosen.form in ("fae", "hotline")
    assert plan.chosen.replicated_bytes > 0
    assert 0 < plan.chosen.popular < 1


def test_fae_is_not_proposed_without_popular_rows() -> None:
    tables = [{"name": f"t{i}", "rows": 2000, "zipf": 1.05} for i in range(26)]
    plan = planned(tables=tables, nodes=[{**DRAM, "memory": "8MB", "most": 2}], fixed_bytes=0)
    assert plan.chosen.nodes == 2
    assert plan.chosen.form == "distinct"


def test_bytes_are_never_negative_where_few_rows_look_a_table_up() -> None:
    tables = [{"name": "rare", "rows": 500, "zipf": 0.5, "lookups": 0.05}]
    plan = planned(tables=tables, nodes=[{**DRAM, "memory": 80_000, "most": 2}], fixed_bytes=0)
    description = TrainingDescription.model_validate(described(tables=tables, fixed_bytes=0))
    popularity = described_popularity(description.tables, 1.0)
    for hot in range(0, 500, 50):
        option = option_of(description, popularity, description.nodes[0], 2, "fae", hot)
        assert option is not None
        assert option.sent_per_row > 0
        assert option.seconds["network"] > 0
    assert plan.chosen.rows_per_s > 0


def test_a_slow_disk_binds() -> None:
    disk = {**DISK, "reads_per_s": 1000}
    plan = planned(nodes=[{**DRAM, "memory": "8GB", "disk": disk, "most": 2}])
    assert plan.chosen.binds == "disk"
    assert plan.chosen.seconds["disk"] > plan.chosen.seconds["compute"]


def test_the_wanted_speed_decides_between_node_types() -> None:
    cheap = {**DRAM, "name": "cheap", "memory": "700GB", "rows_per_s": 1000, "price_per_hour": 0.1, "most": 4}
    assert planned(nodes=[DRAM, cheap], rows_per_s=900).chosen.node == "cheap"
    assert planned(nodes=[DRAM, cheap], rows_per_s=100_000).chosen.node == "dram"
    unreached = planned(nodes=[cheap], rows_per_s=1e9)
    assert unreached.chosen.rows_per_s < 1e9
    assert unreached.min_nodes == {"cheap": None}
    assert "less than" in page(unreached)[2]


def test_a_training_that_fits_no_node_is_reported() -> None:
    with pytest.raises(TrainingPlanError, match="no described node can hold"):
        planned(nodes=[{**DRAM, "most": 2}])
    # rows fit on its disks; a forgotten unit of its memory is the reason
    with pytest.raises(TrainingPlanError, match=r"has 64 B of memory; fixed_bytes and .* take 1\.07 GB"):
        planned(nodes=[{**DRAM, "memory": 64, "disk": DISK}])
    description = TrainingDescription.model_validate(described())
    popularity = described_popularity(description.tables, 1.0)
    assert option_of(description, popularity, description.nodes[0], 2, "distinct", 0) is None


def test_node_counts_end_at_the_most() -> None:
    for most in (1, 5, 16, 17, 64, 1000):
        counts = node_counts(most)
        assert counts[-1] == most
        assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tables": None}, "either `tables` or `calibration`"),
        ({"calibration": "c", "tables": None}, "belong together"),
        ({"nodes": [DRAM, DRAM]}, "node 'dram' is described twice"),
        ({"nodes": [{**DRAM, "memory": "64 parsecs"}]}, r"nodes\['dram'\]\.memory"),
        ({"width": 0}, "width"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(yaml.safe_dump(described(**changes)))
    with pytest.raises(TrainingPlanError, match=says):
        load_description(file)


def test_the_command_writes_and_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "train.yaml", tmp_path / "plan.json"
    file.write_text(yaml.safe_dump(described(rows_per_s=50_000)))
    assert main(["plan", "--train", str(file), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "nothing was measured" in text
    assert "least nodes for 50,000 rows/s: dram" in text
    plan = json.loads(out.read_text())
    assert plan["chosen"]["rows_per_s"] >= 50_000
    assert main(["plan", "--train", str(file), "--slo-ms", "5"]) != 0
    assert "--slo-ms applies to a plan for one machine" in capsys.readouterr().err


def test_a_calibration_gives_the_accesses(
    tmp_path: Path, bundle_dir: Path, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    manifest = json.loads((bundle_dir / "manifest.json").read_text())
    schema.write_text(json.dumps(manifest["schema"]))
    counts = tmp_path / "calibration.safetensors"
    assert main(["calibrate", str(clicks), "--schema", str(schema), "--out", str(counts)]) == 0
    file = tmp_path / "train.yaml"
    changes = {"tables": None, "calibration": counts.name, "schema": schema.name, "rows_per_request": 5.0}
    file.write_text(yaml.safe_dump(described(**changes)))
    capsys.readouterr()
    assert main(["plan", "--train", str(file), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert all(places["memory"] > 0 for places in plan["chosen"]["tables"].values())
    assert plan["chosen"]["nodes"] == 1
