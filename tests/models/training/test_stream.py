from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import EncodedRows, encode, encode_windows
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.checkpoint import CheckpointSettings
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile
from polyrec.models.training.stream import ahead
from polyrec.models.training.trainer import StepReport

SCHEMA = load_schema("trivago")
TRAINING = RecipeFile(
    architecture=Architecture(width=4, bottom=(8,), top=(8,), interaction="cat"),
    recipe=Recipe(epochs=2, batch_rows=256, average=0.9, checks_per_epoch=2),
)


@pytest.fixture(scope="module", params=["plain", "packed"])
def source(request: pytest.FixtureRequest, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "plain":
        return clicks
    folder = tmp_path_factory.mktemp("packed") / "p"
    pack(open_data(clicks, SCHEMA), SCHEMA, folder)
    return folder


@pytest.mark.parametrize("rows", [100, 777, 10_000])
def test_windows_are_the_encoded_rows_cut_between_requests(bundle: Bundle, source: Path, rows: int) -> None:
    reader = open_data(source, SCHEMA)
    splitter = fit_splitter(reader, SCHEMA)
    whole = encode(reader, bundle.encoder, splitter, (TRAIN,))
    first = 0
    groups: list[set[int]] = []
    for window in encode_windows(reader, bundle.encoder, splitter, (TRAIN,), rows):
        assert window.rows <= rows
        assert window.group is not None
        groups.append(set(window.group.tolist()))
        found, expected = (
            d.batch(np.arange(start, start + window.rows)).exploded()
            for d, start in ((window, 0), (whole, first))
        )
        np.testing.assert_array_equal(window.label, whole.label[first : first + window.rows])
        np.testing.assert_array_equal(found.candidate.ranks, expected.candidate.ranks)
        np.testing.assert_array_equal(found.candidate.dense, expected.candidate.dense)
        np.testing.assert_array_equal(found.context.ranks, expected.context.ranks)
        np.testing.assert_array_equal(found.context.bag_values, expected.context.bag_values)
        first += window.rows
    assert first == whole.rows
    assert sum(map(len, groups)) == len(set().union(*groups))
    later = encode_windows(reader, bundle.encoder, splitter, (TRAIN,), rows, first=1)
    assert (
        sum(w.rows for w in later)
        == whole.rows - next(encode_windows(reader, bundle.encoder, splitter, (TRAIN,), rows)).rows
    )


@pytest.mark.parametrize("refit", [False, True])
def test_a_window_of_all_rows_trains_as_in_memory(clicks: Path, tmp_path: Path, refit: bool) -> None:
    training = TRAINING.with_recipe({"refit": refit})
    bundles = [
        Learner(open_data(clicks, SCHEMA), SCHEMA, training, window_rows=window).learn(tmp_path / str(window))
        for window in (None, 10_000)
    ]
    assert bundles[0].manifest.version == bundles[1].manifest.version
    for name in ("test", "validation"):
        assert bundles[0].manifest.metrics[name] == pytest.approx(bundles[1].manifest.metrics[name], abs=1e-6)


def test_small_windows_learn_too_and_draw_every_row(source: Path, tmp_path: Path) -> None:
    drawn: list[int] = []
    learner = Learner(
        open_data(source, SCHEMA),
        SCHEMA,
        TRAINING.with_recipe({"epochs": 1}),
        window_rows=1000,
        progress=lambda report: drawn.append(report.rows),
    )
    bundle = learner.learn(tmp_path / "b")
    assert bundle.test_metrics["auc"] > 0.55
    assert 0.85 * 4320 < sum(drawn) <= 4320 * 1.1


class Interrupted(Exception):
    pass


def test_a_stream_goes_on_from_a_checkpoint(clicks: Path, tmp_path: Path) -> None:
    stop = [20]

    def progress(report: StepReport) -> None:
        if report.step == stop[0]:
            raise Interrupted

    def learner(folder: str) -> Learner:
        place = CheckpointSettings(tmp_path / folder, every_s=0.0)
        reader = open_data(clicks, SCHEMA)
        return Learner(reader, SCHEMA, TRAINING, progress=progress, checkpoint=place, window_rows=1000)

    with pytest.raises(Interrupted):
        learner("kept").learn(tmp_path / "resumed")
    stop[0] = 0
    resumed = learner("kept").learn(tmp_path / "resumed")
    whole = learner("own").learn(tmp_path / "whole")
    assert resumed.manifest.version == whole.manifest.version


def test_reading_ahead_keeps_order_and_passes_errors_on() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("the end of the file")

    found = ahead(items())
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="the end of the file"):
        next(found)


def live_training_rows() -> int:
    """Rows of the encoded training data that are in memory."""
    # the exact type: isinstance would wake lazy modules among all objects
    found = [o for o in gc.get_objects() if type(o) is EncodedRows]
    return sum(data.rows for data in found if TRAIN in data.split)


def test_no_more_than_two_windows_are_in_memory(clicks: Path, tmp_path: Path) -> None:
    """Counted at every step: the window that is drawn and the next one."""
    gc.collect()
    before = live_training_rows()
    counts: list[int] = []
    Learner(
        open_data(clicks, SCHEMA),
        SCHEMA,
        TRAINING.with_recipe({"epochs": 1}),
        progress=lambda _: counts.append(live_training_rows() - before),
        window_rows=500,
    ).learn(tmp_path / "b")
    assert 0 < max(counts) <= 2 * 500
