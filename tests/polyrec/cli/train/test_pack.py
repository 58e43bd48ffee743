from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.cli.main import main
from polyrec.cli.train import pack
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.schema import load_schema


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("data") / "clicks.parquet", 6000, items=200, users=50).path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    pack.add_arguments(parser)
    return pack.run(parser.parse_args([str(a) for a in arguments]))


def test_a_summary_is_printed(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packed"
    assert run(data, "--schema", "trivago", "--out", out) == 0
    printed = capsys.readouterr().out
    assert f"{out}: 6,000 rows as " in printed
    assert "stored once per request: request_id, timestamp, user_id" in printed
    assert "moved" not in printed
    reader = open_data(out, load_schema("trivago"))
    assert reader.rows_hint == 6000


def test_the_result_is_printed_as_json(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shuffled = tmp_path / "shuffled.parquet"
    table = pq.read_table(data)
    pq.write_table(table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows))), shuffled)
    out = tmp_path / "packed"
    run(shuffled, "--schema", "trivago", "--out", out, "--cluster-by", "user_id", "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["rows"] == 6000
    assert result["moved"]
    assert result["stored"] == result["requests"] == len(set(table["request_id"].to_pylist()))
    assert result["bytes"] == sum(f.stat().st_size for f in out.iterdir())
    assert result["source_bytes"] == shuffled.stat().st_size
    assert set(result["own"]) == {"item", "position", "price", "price_rank", "seen", "clicked", "planted"}
    assert all(group["factor"] > 1 for group in result["repeats"])


def test_packed_data_train_like_plain_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(data), "--schema", "trivago", "--out", str(tmp_path / "packed")]) == 0
    metrics = []
    for source in (data, tmp_path / "packed"):
        out = tmp_path / f"bundle-{source.name}"
        arguments = ["--data", str(source), "--schema", "trivago", "--out", str(out), "--epochs", "1"]
        assert main(["train", *arguments]) == 0
        metrics.append(load_bundle(out).manifest.metrics["test"])
    assert metrics[0].keys() == metrics[1].keys()
    for name, value in metrics[0].items():
        assert metrics[1][name] == pytest.approx(value, abs=1e-6)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.parquet", "--schema", "trivago"], "no data file 'nothing.parquet'"),
        (["DATA", "--schema", "trivago", "--cluster-by", "sesion"], "no column 'sesion' to cluster by"),
        (["DATA", "--schema", "GROUPLESS"], "has no group, so there is nothing to cluster"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], message: str, data: Path, tmp_path: Path) -> None:
    groupless = tmp_path / "schema.json"
    groupless.write_text(
        load_schema("trivago").model_copy(update={"group": None, "request": ()}).model_dump_json()
    )
    filled = [data if a == "DATA" else groupless if a == "GROUPLESS" else a for a in arguments]
    with pytest.raises(PolyrecError) as error:
        run(*filled, "--out", tmp_path / "p")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "p").exists()
