"""A canary is judged by labels that come back, on the same logged requests as the version that serves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.embeddings.table import TableStage
from polyrec.models.runtimes import open_runtime
from polyrec.planner.plan import Plan, save_plan
from polyrec.server.live_quality.judge import Judge
from polyrec.server.live_quality.live import LiveQuality
from polyrec.server.live_quality.report import write_report
from polyrec.server.live_quality.settings import LiveQualitySettings
from polyrec.server.prediction_log.settings import PredictionLogSettings
from tests.server.conftest import Request
from tests.server.live_quality.conftest import WINDOW_S, LogFolder
from tests.server.rollout.conftest import Trial

LOOSE = {"max_psi": 1e6, "max_loss": 1e6}
"""Bounds that leave the labels to decide."""
AHEAD_S = 300.0
"""Requests are logged this far ahead: after the canary was made, however slow the machine."""


def version(bundle: Bundle, folder: Path, shuffled: bool, noise: float = 0.0) -> Path:
    """The bundle with an item table that matters, its rows shuffled or a little different."""
    model = deepcopy(bundle.model())
    stage = model.stage
    assert isinstance(stage, TableStage)
    first, random = stage.rows.base["item"], torch.Generator().manual_seed(0)
    rows = bundle.encoder.vocabularies["item"].rows
    with torch.no_grad():
        (weight,) = (p for name, p in model.named_parameters() if name.endswith("store.weight"))
        own = 30 * weight[first : first + rows].clone()
        own += noise * torch.randn(own.shape, generator=random)
        weight[first : first + rows] = own[torch.randperm(rows, generator=random)] if shuffled else own
    parts = (bundle.manifest.representation, bundle.encoder, {}, {})
    return write_bundle(folder, model, *parts).path


def plan_file(plan: Plan, bundle: Path) -> Path:
    planned = plan.paths[0].model_copy(update={"bundle": bundle})
    file = bundle.parent / f"{bundle.name}.json"
    save_plan(plan.model_copy(update={"paths": (planned,)}), file)
    return file


@pytest.fixture
def labeled(
    client_of: Callable[[Plan], Any], plan: Plan, bundle: Bundle, clicks: Path, tmp_path: Path
) -> Iterator[tuple[Trial, LiveQuality]]:
    """A server, and a log of requests whose clicks are drawn from its predictions."""
    stable = version(bundle, tmp_path / "stable", shuffled=False)
    client = client_of(Plan.model_validate_json(plan_file(plan, stable).read_bytes()))
    engine = client.app.engine
    folder = tmp_path / "log"
    folder.mkdir()
    log = LogFolder(folder, bundle.manifest.schema_)
    log.at_s = time.time() + AHEAD_S
    runtime = open_runtime("torch", engine.serving.bundle)
    table, random = pq.read_table(clicks), np.random.default_rng(0)
    ids = table["request_id"].to_numpy()
    cuts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1)).tolist()
    for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
        request = Request(table.slice(begin, end - begin), bundle.manifest.schema_)
        batch = bundle.encoder.from_arrow(request.table.combine_chunks().to_batches()[0])
        clicked = np.flatnonzero(random.random(end - begin) < runtime.predict(batch)).tolist()
        log.add(request, f"r{i}")
        log.label(f"r{i}", clicked or [0], [float(bool(clicked))] * max(len(clicked), 1), f"client {i % 3}")
    log.write()
    settings = LiveQualitySettings(mode="measure")
    live = LiveQuality(settings, PredictionLogSettings(folder=folder), engine.metrics, engine.serving)
    live.adopt(engine.serving)
    live.close()  # this test judges in place of the process
    engine.live_quality = live
    yield Trial(client, engine), live
    engine.live_quality = None
    log.counts.close()


def judged(trial: Trial, live: LiveQuality) -> None:
    """Judges once all labels are final, and has the server read the report."""
    settings = live.judged_of(trial.engine.serving)
    assert settings.canary is not None
    judge = Judge(settings.model_copy(update={"settle_s": 0.0}), lambda _: None)
    report = judge.round(time.time() + AHEAD_S + WINDOW_S).model_copy(update={"at_s": time.time()})
    write_report(live._file, report)
    trial.client.runner.run(live.poll())


def test_a_canary_with_a_shuffled_item_table_is_rolled_back_by_labels(
    labeled: tuple[Trial, LiveQuality], plan: Plan, bundle: Bundle, tmp_path: Path
) -> None:
    trial, live = labeled
    bad = plan_file(plan, version(bundle, tmp_path / "bad", shuffled=True))
    trial.start(bad, share=0.1, bounds=LOOSE)
    judged(trial, live)
    ended = trial.ended()
    assert ended["outcome"] == "rolled_back"
    assert "labeled requests" in ended["reason"]
    assert ended["decision"]["figures"]["live_high"] < -0.01
    assert live.judged_of(trial.engine.serving).canary is None


def test_a_canary_that_is_as_good_is_not(
    labeled: tuple[Trial, LiveQuality], plan: Plan, bundle: Bundle, tmp_path: Path
) -> None:
    trial, live = labeled
    good = plan_file(plan, version(bundle, tmp_path / "good", shuffled=False, noise=1e-3))
    trial.start(good, share=0.1, bounds=LOOSE)
    judged(trial, live)
    found = live.canary(trial.status()["rollout"]["canary_version"])
    assert found is not None
    assert -0.01 < found[1] <= found[0] <= found[2] < 0.01
    assert trial.call("rollback").status_code == 200
    assert trial.status()["ended"][0]["reason"] == "by the operator's call"


def test_requests_from_before_a_version_was_made_do_not_count(
    labeled: tuple[Trial, LiveQuality], plan: Plan, bundle: Bundle, tmp_path: Path
) -> None:
    trial, live = labeled
    bad = plan_file(plan, version(bundle, tmp_path / "late", shuffled=True))
    trial.start(bad, share=0.1, bounds=LOOSE)
    settings = live.judged_of(trial.engine.serving)
    assert settings.canary is not None
    later = settings.canary.model_copy(update={"since_s": time.time() + AHEAD_S})
    judge = Judge(settings.model_copy(update={"settle_s": 0.0, "canary": later}), lambda _: None)
    report = judge.round(time.time() + AHEAD_S + WINDOW_S)
    assert report.requests > 30
    assert report.trial is not None
    assert (report.trial.requests, report.trial.confirmed) == (0, None)
    assert trial.call("rollback").status_code == 200
