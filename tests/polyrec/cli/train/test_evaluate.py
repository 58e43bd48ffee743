from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.cli.train import evaluate
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.errors import PolyrecError

ONE = {"bundle", "split", "rows", "positives", "auc", "log_loss", "normalised_entropy", "accuracy"}
ONE |= {"information", "information_error", "calibration", "groups", "mrr", "top1", "ndcg"}


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return evaluate.run(parser.parse_args([str(a) for a in arguments]))


@pytest.fixture(scope="module")
def worse(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle, spoilt: every probability is far too high, and the last layer's weights are turned."""
    bundle = load_bundle(bundle_dir)
    model = bundle.model()
    with torch.no_grad():
        model.net.output.weight.neg_()
        model.net.output.bias.add_(3)
    representation = bundle.manifest.representation
    out = tmp_path_factory.mktemp("bundles") / "worse"
    return write_bundle(out, model, representation, bundle.encoder, metrics={}, training={}).path


def test_one_bundle_gives_its_quality(
    bundle_dir: Path, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle_dir, "--data", clicks, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said.keys() == ONE
    assert said["auc"] == pytest.approx(load_bundle(bundle_dir).manifest.metrics["test"]["auc"], rel=1e-4)


def test_several_bundles_give_a_list_with_differences_to_the_baseline(
    bundle_dir: Path, worse: Path, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (bundle_dir, worse, "--data", clicks, "--resamples", 50, "--json")
    assert run(*arguments) == 0
    table, other = json.loads(capsys.readouterr().out)
    assert table.keys() >= ONE
    assert table["to_baseline"] is None
    assert other["to_baseline"]["log_loss"]["verdict"] == "worse"
    assert other["bundle"] == str(worse)
    assert run(*arguments, "--baseline", worse) == 0
    table, other = json.loads(capsys.readouterr().out)
    assert other["to_baseline"] is None
    assert table["to_baseline"]["log_loss"]["verdict"] == "better"


def test_nested_widths_are_compared(
    nested: Bundle, bundle_dir: Path, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(nested.path, "--data", clicks, "--resamples", 20, "--json") == 0
    narrow, wide = json.loads(capsys.readouterr().out)
    assert [narrow["label"], wide["label"]] == ["table.w4", "table.w8"]
    assert wide["to_baseline"] is None
    assert narrow["bytes"]["total"] < wide["bytes"]["total"]
    assert narrow["flops_per_row"]["total"] < wide["flops_per_row"]["total"]
    for one in (narrow, wide):
        expected = nested.manifest.metrics[f"test.{one['label'].partition('.')[2]}"]["auc"]
        assert one["auc"] == pytest.approx(expected, rel=1e-3)


def test_several_bundles_are_shown_in_a_table_with_findings(
    bundle_dir: Path, worse: Path, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle_dir, worse, "--data", clicks, "--resamples", 50) == 0
    said = capsys.readouterr().out
    assert "information against table" in said
    assert "worse is worse than table in information, AUC, log-loss and accuracy" in said


def test_a_report_is_written_and_named(
    bundle_dir: Path, worse: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    assert run(bundle_dir, worse, "--data", clicks, "--resamples", 20, "--report", folder) == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    read = json.loads((folder / "report.json").read_text())
    assert [b["label"] for b in read["bundles"]] == ["table", "worse"]
    assert (read["data"], read["resamples"]) == (str(clicks), 20)


def test_predictions_are_saved_in_the_order_of_the_bundles(
    bundle_dir: Path, worse: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.npy", tmp_path / "two.npy"
    run(worse, "--data", clicks, "--predictions", one)
    run(bundle_dir, worse, "--data", clicks, "--resamples", 2, "--predictions", two)
    assert np.load(two).shape == (2, *np.load(one).shape)
    assert (np.load(two)[1] == np.load(one)).all()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--baseline", "elsewhere"], "--baseline 'elsewhere' is not one of the bundles"),
        (["--resamples", "0"], "--resamples must be at least 1"),
    ],
)
def test_a_users_mistake_is_one_line(bundle_dir: Path, clicks: Path, more: list[str], reason: str) -> None:
    with pytest.raises(PolyrecError, match=reason) as error:
        run(bundle_dir, "--data", clicks, *more)
    assert "\n" not in str(error.value)


def test_the_same_bundle_twice_is_an_error(bundle_dir: Path, clicks: Path) -> None:
    with pytest.raises(PolyrecError, match="is named twice"):
        run(bundle_dir, bundle_dir, "--data", clicks)


def test_labels_are_the_shortest_different_path_ends(tmp_path: Path) -> None:
    assert evaluate.labels_of(["runs/table", "runs/dhe"]) == {"runs/table": "table", "runs/dhe": "dhe"}
    assert evaluate.labels_of(["a/1/x", "a/2/x"]) == {"a/1/x": "1/x", "a/2/x": "2/x"}
    assert evaluate.labels_of(["a/x", "a/./x"]) == {"a/x": "a/x", "a/./x": "a/./x"}


def test_a_copied_bundle_predicts_the_same(
    bundle_dir: Path, clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle_dir, copy)
    assert run(bundle_dir, copy, "--data", clicks, "--resamples", 5) == 0
    assert "copy predicts the same as table." in capsys.readouterr().out
