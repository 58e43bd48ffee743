"""`polyrec profile` from end to end, on a tiny bundle with a tiny budget of time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polyrec.cli.main import main
from polyrec.models.data.reader import open_data
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.schema import Split, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.planner.plan import load_plan
from polyrec.planner.profile import Profile, load_profile
from polyrec.report.chart import png
from polyrec.report.profile.plot import draw
from polyrec.report.profile.summary import machine_lines, profile_lines
from polyrec.server.app.engine import Engine

QUICK = ("--seconds", "0.15", "--max-rows", "32", "--precisions", "fp32", "--no-front")


@pytest.fixture(scope="module")
def written(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of one path of the tiny bundle."""
    out = tmp_path_factory.mktemp("profiles") / "profile.json"
    assert main(["profile", str(bundle_dir), "--out", str(out), *QUICK]) == 0
    return out


@pytest.fixture(scope="module")
def profile(written: Path) -> Profile:
    return load_profile(written)


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Returns the one line of an error."""
    capsys.readouterr()
    assert main(["profile", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.strip().splitlines()[-1:]
    return line


def test_a_profile_has_cost_and_quality_of_a_path(profile: Profile, bundle_dir: Path) -> None:
    (path,) = profile.paths
    assert path.path.name == "table@cpu"
    assert path.path.bundle == bundle_dir
    assert path.path.runtime == "onnx"
    manifest = json.loads((bundle_dir / "manifest.json").read_text())
    assert path.bundle_version == manifest["version"]
    assert path.quality == manifest["metrics"]["test"]["information"]
    assert path.quality_from == "bundle"
    assert path.startup_s > 0
    assert path.memory.peak > 0
    assert path.origin == "measured"
    assert profile.machine.device("cpu").bandwidth


def test_a_profile_has_every_size_with_its_percentiles(profile: Profile) -> None:
    (path,) = profile.paths
    assert [p.rows for p in path.points if p.fitted] == [1, 2, 4, 8, 16, 32]
    assert [p.rows for p in path.points if not p.fitted] == [3, 6, 11, 23]
    assert [p.rows for p in path.evicted] == [1, 8, 32]
    for point in (*path.points, *path.evicted):
        assert 0 < point.p50_s <= point.p90_s <= point.p99_s
        assert point.p50_s <= point.max_s
        assert point.samples >= 1
    assert path.latency.rows[0] == 1
    # twice the largest if its time is that of the size before it
    assert path.latency.rows[-1] in (32, 64)
    assert path.error is not None


@pytest.mark.long
def test_a_written_profile_is_planned_and_its_plan_is_opened(written: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    asked = ["--slo-ms", "1000", "--traffic", "rate=10,sizes=fixed:2", "--out", str(out)]
    assert main(["plan", "--profile", str(written), *asked]) == 0
    engine = Engine()
    engine.load(load_plan(out))
    assert [path.name for path in engine.serving.paths] == ["table@cpu"]
    engine.close()


def test_bundles_that_one_plan_cannot_serve_are_refused_before_the_work(
    bundle_dir: Path,
    recalibrated_dir: Path,
    shop_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "profile.json"
    line = error_of(capsys, str(bundle_dir), str(recalibrated_dir), "--out", str(out), *QUICK)
    assert f"bundles '{bundle_dir}' and '{recalibrated_dir}' have different vocabularies" in line
    assert "`polyrec train --calibration FILE`" in line
    line = error_of(capsys, str(bundle_dir), str(shop_dir), "--out", str(out), *QUICK)
    assert f"bundles '{bundle_dir}' and '{shop_dir}' have different schemas" in line
    assert not list(tmp_path.iterdir())


def test_no_other_file_than_the_profile_is_left(written: Path) -> None:
    assert [file.name for file in written.parent.iterdir() if file.suffix != ".png"] == ["profile.json"]


def interrupted(arguments: Sequence[str], partial: Path, blocks: int) -> list[dict[str, Any]]:
    """Interrupts a profile that has written so many measured blocks; returns all that it has written."""

    def measured() -> list[dict[str, Any]]:
        lines = partial.read_text().splitlines()[1:] if partial.exists() else []
        return [json.loads(line) for line in lines if '"what": "warm' in line and line.endswith("}")]

    process = subprocess.Popen([sys.executable, "-m", "polyrec", "profile", *arguments])
    try:
        while len(measured()) < blocks:
            assert process.poll() is None, "it ended before it was interrupted"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
    return measured()


@pytest.mark.long
def test_an_interrupted_profile_is_resumed(
    bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, partial = tmp_path / "profile.json", tmp_path / "profile.json.partial"
    arguments = (str(bundle_dir), "--out", str(out), *QUICK)
    first = interrupted(arguments, partial, 10)
    assert not out.exists()
    # as an interrupt can leave it
    with partial.open("a") as file:
        file.write('{"path": "table@cpu", "ident')
    second = interrupted(arguments, partial, len(first) + 5)
    assert second[: len(first)] == first
    kinds = [line["what"] for line in second]
    assert len(set(kinds)) == len(kinds)
    capsys.readouterr()
    assert main(["profile", *arguments]) == 0
    assert "resuming an earlier run" in capsys.readouterr().err
    assert not partial.exists()
    assert len(load_profile(out).paths[0].points) == 10


@pytest.fixture(scope="module")
def full(bundle_dir: Path, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A profile with data and with a served front, of two precisions."""
    import polyrec.cli.plan.profile_run as run

    out = tmp_path_factory.mktemp("full") / "profile.json"
    quick = ("--seconds", "0.05", "--max-rows", "4", "--json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "FRONT_SECONDS", 0.5)
        assert main(["profile", str(bundle_dir), "--out", str(out), "--data", str(clicks), *quick]) == 0
    return load_profile(out)


def test_quality_of_each_path_is_measured_on_data(full: Profile, bundle_dir: Path) -> None:
    fp32, int8 = full.paths
    assert [p.path.name for p in full.paths] == ["table@cpu", "table.int8@cpu"]
    assert fp32.quality_from == int8.quality_from == "data"
    # the rows that the bundle's own figures are of
    own = json.loads((bundle_dir / "manifest.json").read_text())["metrics"]["test"]
    assert fp32.metrics["rows"] == own["rows"]
    assert fp32.quality == pytest.approx(own["information"], abs=1e-3)
    assert fp32.accuracy == pytest.approx(own["accuracy"], abs=1e-3)
    assert fp32.interval is not None
    assert fp32.interval[0] < fp32.quality < fp32.interval[1]
    (difference,) = full.differences
    assert (difference.path, difference.other, difference.kind) == ("table@cpu", "table.int8@cpu", "paired")
    assert fp32.metrics["log_loss"] == pytest.approx(own["log_loss"], rel=1e-3)
    # a net this small has no product that int8 quantizes (models/runtimes/onnx_graph.py)
    assert int8.metrics["log_loss"] == pytest.approx(fp32.metrics["log_loss"], rel=1e-3)


def test_the_front_of_a_real_server_is_measured(full: Profile) -> None:
    assert full.front is not None
    # an answer takes some microseconds, and never a tenth of a second of work
    assert 1e-6 < full.front.query_s + 270 * full.front.row_s < 0.1


def test_the_hop_to_lanes_of_both_kinds_is_measured(full: Profile) -> None:
    assert set(full.hops) == {"thread", "process"}
    assert all(1e-6 < hop.median_s <= hop.tail_s < 1 for hop in full.hops.values())


def test_a_saved_profile_is_plotted(written: Path, profile: Profile) -> None:
    plot = written.with_suffix(".png")
    assert main(["profile", "--out", str(written), "--plot", str(plot)]) == 0
    assert plot.read_bytes() == png(draw(profile))
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_summary_has_every_path_and_assumptions(profile: Profile) -> None:
    (path,) = profile.paths
    assumed = path.model_copy(update={"quality_from": "assumed", "note": "as its neighbour's"})
    text = "\n".join(profile_lines(profile.model_copy(update={"paths": (assumed,)})))
    assert "table@cpu" in text
    assert "* as its neighbour's" in text
    assert "23 rows" in text
    assert "4096 rows" not in text
    assert any("executes with" in line for line in machine_lines(profile.machine))


def test_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["machine"]["devices"][0]["name"] == "cpu"
    assert 1 <= listed["machine"]["devices"][0]["lanes"] <= len(os.sched_getaffinity(0))


def test_users_mistakes_are_one_line(
    bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(bundle_dir)
    out = ("--out", str(tmp_path / "p.json"))
    assert "give the folder of a bundle" in error_of(capsys)
    assert "is named twice" in error_of(capsys, bundle, bundle)
    assert "--seconds must be a time above 0, not 0" in error_of(capsys, bundle, "--seconds", "0")
    assert "--max-rows must be between" in error_of(capsys, bundle, "--max-rows", "0")
    assert "--runtimes: there is no 'jax'; known: onnx, openvino, torch" in error_of(
        capsys, bundle, "--runtimes", "jax"
    )
    assert "--precisions: there is no 'fp8'" in error_of(capsys, bundle, "--precisions", "fp8")
    assert "is a folder; name a file" in error_of(capsys, bundle, "--out", str(tmp_path))
    assert "cannot write --out '/proc/no/p.json'" in error_of(capsys, bundle, "--out", "/proc/no/p.json")
    assert "--plot '/tmp' is a folder" in error_of(capsys, bundle, "--plot", "/tmp", *out)
    assert "no bundle at" in error_of(capsys, str(tmp_path), *out)
    assert "has no device 'gpu7'; it has cpu" in error_of(capsys, bundle, "--devices", "gpu7", *out)
    assert "no profile" in error_of(capsys, "--plot", str(tmp_path / "p.png"), *out)
    assert "write BUNDLE=VALUE with one of" in error_of(capsys, bundle, "--quality", "other=0.9", *out)
    assert "'79%' is not a number" in error_of(capsys, bundle, "--quality", f"{bundle}=79%", *out)
    only = ("--runtimes", "torch", "--precisions", "int8")
    assert "there is no path to measure" in error_of(capsys, bundle, "--devices", "cpu", *only, *out)


def test_data_that_cannot_be_read_are_reported_before_the_work(
    clicks: Path, bundle_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pq.read_table(clicks)
    pq.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    for name, reason in (("no.parquet", "no data file"), ("empty.parquet", "there are no rows to split")):
        given = ["--data", str(tmp_path / name), "--out", str(tmp_path / "p.json")]
        assert main(["profile", str(bundle_dir), *given]) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert "detecting devices" not in said


def test_data_without_test_rows_are_reported_before_the_work(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A split by hash needs no pass over the data, which would find that there are none."""
    schema = load_schema("trivago")
    schema = schema.model_copy(update={"split": Split(rule="hash", columns=("request_id",))})
    tiny = Architecture(width=4, bottom=(4,), top=(4,), interaction="dot")
    training = RecipeFile(architecture=tiny, recipe=Recipe(epochs=1, batch_rows=1024))
    bundle = Learner(open_data(clicks, schema), schema, training).learn(tmp_path / "hashed").path
    pq.write_table(pq.read_table(clicks).slice(0, 0), tmp_path / "empty.parquet")
    given = ["--data", str(tmp_path / "empty.parquet"), "--out", str(tmp_path / "p.json")]
    capsys.readouterr()
    assert main(["profile", str(bundle), *given]) == 2
    said = capsys.readouterr().err
    assert "the split by hash leaves no test rows" in said
    assert "detecting devices" not in said
