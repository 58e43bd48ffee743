from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from polyrec.cli.train import calibrate
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.popularity import load_calibration


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("data") / "clicks.parquet", 5000, items=200, users=50).path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    return calibrate.run(parser.parse_args([str(a) for a in arguments]))


def test_the_order_is_saved_and_the_skew_printed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "clicks.calibration"
    assert run(data, "--schema", "trivago", "--out", out) == 0
    printed = capsys.readouterr().out
    found = load_calibration(out)
    assert f"order of {found.rows:,} of {found.rows:,} training rows -> {out}" in printed
    for table, v in found.vocabularies.items():
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{table} ")]
        assert line.split()[1:3] == [f"{v.rows:,}", f"{v.counts.sum():,}"]


def test_the_result_is_printed_as_json(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    run(data, "--schema", "trivago", "--out", out, "--sample", 0.1, "--seed", 3, "--json")
    result = json.loads(capsys.readouterr().out)
    found = load_calibration(out)
    assert result["training_rows"] == found.rows
    assert result["sampled_rows"] == found.sampled_rows
    assert 0.05 < found.sampled_rows / found.rows < 0.15
    assert result["malformed"] == 0
    assert result["tables"]["item"]["rows"] == found.vocabularies["item"].rows
    assert 0 < result["tables"]["item"]["skew"]["0.01"] < result["tables"]["item"]["skew"]["0.10"] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.parquet", "--schema", "trivago"], "no data file 'nothing.parquet'"),
        (["DATA", "--schema", "nothing"], "no schema file 'nothing'"),
        (["DATA", "--schema", "bookcrossing"], "no column 'age'; the columns are request_id"),
        (["DATA", "--schema", "trivago", "--sample", "2"], "a sample of 2.0 is not a share"),
    ],
)
def test_a_users_mistake_is_one_line(arguments: list[str], message: str, data: Path, tmp_path: Path) -> None:
    filled = [data if a == "DATA" else a for a in arguments]
    with pytest.raises(PolyrecError) as error:
        run(*filled, "--out", tmp_path / "c")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "c").exists()
