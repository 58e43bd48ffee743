from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.reader import open_data
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.checkpoint import CheckpointSettings
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.models.training.trainer import StepReport

SCHEMA = load_schema("trivago")
TRAINING = RecipeFile(
    architecture=Architecture(width=8, bottom=(16,), top=(32,)),
    recipe=Recipe(epochs=2, batch_rows=256, average=0.9, checks_per_epoch=2, dropout=0.1),
    encoding=Encoding(k=32, hidden=(16,), batch_norm=True),
)


def learner(clicks: Path, kind: RepresentationKind = "table", **recipe: object) -> Learner:
    reader = open_data(clicks, SCHEMA)
    return Learner(reader, SCHEMA, TRAINING.with_recipe(recipe), kind, baselines=False)


@pytest.mark.parametrize("kind", ["table", "hybrid"])
def test_products_in_bf16_learn_about_as_well_and_weights_stay_fp32(
    clicks: Path, tmp_path: Path, kind: RepresentationKind
) -> None:
    made = {p: learner(clicks, kind, precision=p).learn(tmp_path / p) for p in ("fp32", "bf16")}
    fp32, bf16 = (made[p].test_metrics for p in ("fp32", "bf16"))
    assert bf16["log_loss"] == pytest.approx(fp32["log_loss"], rel=0.02)
    assert bf16["log_loss"] != fp32["log_loss"]
    assert {t.dtype for t in made["bf16"].model().state_dict().values()} == {torch.float32}
    assert made["bf16"].manifest.training["recipe"]["precision"] == "bf16"


class Interrupted(Exception):
    pass


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["table", "dhe", "hybrid"])
def test_training_on_gpu_and_cpu_gives_equal_models(
    clicks: Path, tmp_path: Path, kind: RepresentationKind
) -> None:
    """Dropout draws other numbers there, so it is left out."""
    plain = learner(clicks, kind, dropout=0.0)
    bundles = [
        dataclasses.replace(plain, device=device).learn(tmp_path / device) for device in ("cpu", "cuda")
    ]
    rows = next(iter(open_data(clicks, SCHEMA).batches(SCHEMA.columns, 2000)))
    p = [open_runtime("torch", b).predict(b.encoder.from_arrow(rows)) for b in bundles]
    np.testing.assert_allclose(p[0], p[1], atol=5e-3)
    assert bundles[1].test_metrics["log_loss"] == pytest.approx(bundles[0].test_metrics["log_loss"], rel=1e-2)


@pytest.mark.gpu
def test_a_training_on_a_gpu_goes_on_from_a_checkpoint(clicks: Path, tmp_path: Path) -> None:
    stop = [5]

    def progress(report: StepReport) -> None:
        if report.step == stop[0]:
            raise Interrupted

    def learn(folder: str, out: str) -> Bundle:
        kept = CheckpointSettings(tmp_path / folder, every_s=0.0)
        on_gpu = dataclasses.replace(learner(clicks), device="cuda", checkpoint=kept, progress=progress)
        return on_gpu.learn(tmp_path / out)

    with pytest.raises(Interrupted):
        learn("kept", "resumed")
    stop[0] = 0
    resumed, whole = learn("kept", "resumed"), learn("own", "whole")
    assert resumed.test_metrics["log_loss"] == pytest.approx(whole.test_metrics["log_loss"], rel=1e-3)
