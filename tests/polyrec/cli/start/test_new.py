from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.cli.main import main
from polyrec.models.schema.schema import load_schema


def test_the_draft_of_a_file_trains(clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schema.yaml"
    assert main(["new", "schema", str(clicks), "--out", str(out), "--name", "hotels"]) == 0
    assert f"polyrec train --data {clicks} --schema {out}" in capsys.readouterr().out
    schema = load_schema(out)
    assert (schema.name, schema.label.column, schema.group) == ("hotels", "clicked", "request_id")
    trained = ["train", "--data", str(clicks), "--schema", str(out), "--out", str(tmp_path / "table")]
    assert main([*trained, "--epochs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["test"]["auc"] > 0.5


def test_schema_and_reasons_are_printed(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "schema", str(clicks)]) == 0
    assert "label: {column: clicked}  # 0 or 1" in capsys.readouterr().out
    assert main(["new", "schema", str(clicks), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"]["label"] == {"column": "clicked"}
    assert printed["reasons"]["group"].endswith("rows each, next to one another")


def test_training_without_a_schema_offers_a_draft(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(clicks), "--out", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert (
        f"`polyrec new schema {clicks} --out schema.yaml` drafts one: label clicked, group request_id" in said
    )
    assert not (tmp_path / "b").exists()


def test_columns_left_out_for_their_names_are_named_with_a_command_that_renames_them(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pq.read_table(clicks)
    names = ["article no" if name == "item" else name for name in table.column_names]
    Path("it's [1]/day=1").mkdir(parents=True)
    pq.write_table(table.rename_columns(names), "it's [1]/day=1/odd one.parquet")
    for data in ("it's [1]/day=1/odd one.parquet", "it's [1]", "it's [[]1]/*/*.parquet"):
        assert main(["new", "schema", data, "--out", "s.yaml", "--replace"]) == 0
        out, err = capsys.readouterr()
        assert shlex.split(out.splitlines()[-1])[:4] == ["polyrec", "train", "--data", data]
        said, command = err.splitlines()
        assert said.startswith("omitted, as features cannot have such names: 'article no'; rename")
        program, *arguments = shlex.split(command)
        subprocess.run([{"python": sys.executable}[program], *arguments], check=True)
        assert "day" not in pq.read_schema("renamed.parquet").names
        assert main(["new", "schema", "renamed.parquet", "--out", "s.yaml", "--replace"]) == 0
        assert capsys.readouterr().err == ""
        assert "article_no" in load_schema("s.yaml").candidate.names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["FILE"], "no column of 'FILE' looks like a label; name it: --label COLUMN"),
        (["FILE", "--label", "nothing"], "no column 'nothing'; the columns are user, price"),
        (["FILE", "--label", "user"], "column 'user' of 'FILE' is text ('a', 'b'); a label is a number"),
        (["nothing.parquet"], "nothing.parquet"),
        (["FILE", "--out", "FILE"], "'FILE' exists; --replace replaces it"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "f.parquet")
    pq.write_table(pa.table({"user": ["a", "b", "a"], "price": [1.5, 2.5, 4.5]}), file)
    assert main(["new", "schema", *(file if a == "FILE" else a for a in arguments)]) == 2
    said = capsys.readouterr().err
    assert says.replace("FILE", file) in said
    assert said.count("\n") == 1


def test_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "f.parquet")
    pq.write_table(pa.table({"user": ["a", "b", "a"], "clicked": [0, 1, 0]}), file)
    assert main(["new", "schema", file, "--out", "/dev/full"]) == 2
    assert capsys.readouterr().err.endswith("cannot write '/dev/full': No space left on device\n")
