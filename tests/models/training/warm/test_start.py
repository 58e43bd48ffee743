from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.checkpoint import CheckpointSettings, ResumeError
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.trainer import StepReport
from polyrec.models.training.warm.start import WarmStart
from tests.models.training.warm.conftest import SMALL

SCHEMA = load_schema("trivago")


def learner(data: Path, start: WarmStart, **changes: object) -> Learner:
    training = SMALL.model_copy(update={"architecture": start.bundle.manifest.architecture})
    recipe = {k: changes.pop(k) for k in list(changes) if k in type(SMALL.recipe).model_fields}
    kind = start.bundle.manifest.representation.kind
    reader = open_data(data, SCHEMA)
    return Learner(
        reader, SCHEMA, training.with_recipe(recipe), kind, baselines=False, start=start, **changes
    )


@pytest.mark.parametrize("name", ["table", "hybrid", "parts", "nested"])
@pytest.mark.parametrize("refit", [False, True])
def test_training_goes_on_with_the_ids_of_both(
    family: dict[str, Bundle], later: Path, tmp_path: Path, name: str, refit: bool
) -> None:
    old = family[name]
    new = learner(later, WarmStart(old), refit=refit).learn(tmp_path / "new")
    assert new.manifest.architecture == old.manifest.architecture
    assert new.encoder.standards == old.encoder.standards
    for table, was in old.encoder.vocabularies.items():
        now = new.encoder.vocabularies[table]
        assert was.values is None or now.values.slice(0, was.size).equals(was.values)
    record = new.manifest.training["from"]
    assert record["version"] == old.manifest.version
    assert record["tables"]["item"]["new"] > 0
    assert record["tables"]["item"]["forgotten"] == 0
    test = next(iter(open_data(later, SCHEMA).batches(SCHEMA.columns, 4000)))
    fresh = pc.invert(pc.is_in(test.column("item"), value_set=old.encoder.vocabularies["item"].values))
    item = new.encoder.vocabularies["item"]
    served = test.filter(pc.and_(fresh, pc.is_in(test.column("item"), value_set=item.values)))
    assert served.num_rows
    assert (item.encode_arrow(served.column("item")) != item.oov_rank).all()
    p = open_runtime("torch", new).predict(new.encoder.from_arrow(served))
    assert ((p > 0) & (p < 1)).all()


def test_weights_that_do_not_improve_stay_those_of_the_bundle(
    family: dict[str, Bundle], clicks: Path, tmp_path: Path
) -> None:
    """Steps that only do harm: the weights of step 0 are kept, on the very rows of the bundle.

    No linear start replaces them either.
    """
    old = family["table"]
    steps = {"dense_lr": 10.0, "sparse_lr": 10.0, "average": 0.0, "warm_up": 0.0}
    harm = learner(clicks, WarmStart(old), **steps, calibrate=False, linear_start=(0, 10**6))
    new = harm.learn(tmp_path / "new")
    assert new.manifest.training["best_step"] == 0
    assert not new.manifest.training["linear_start"]
    rows = next(iter(open_data(clicks, SCHEMA).batches(SCHEMA.columns, 2000)))
    before, after = (open_runtime("torch", b).predict(b.encoder.from_arrow(rows)) for b in (old, new))
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_sampled_negatives_are_corrected_once(clicks: Path, tmp_path: Path) -> None:
    table = pq.read_table(clicks)
    kept = (np.random.default_rng(0).random(table.num_rows) < 0.5) | (table["clicked"].to_numpy() > 0)
    pq.write_table(table.filter(pa.array(kept)), tmp_path / "sampled.parquet")
    label = SCHEMA.label.model_copy(update={"negatives_kept": 0.5})
    sampled = SCHEMA.model_copy(update={"label": label})
    reader = open_data(tmp_path / "sampled.parquet", sampled)
    old = Learner(reader, sampled, SMALL, baselines=False).learn(tmp_path / "old")
    new = Learner(reader, sampled, SMALL, baselines=False, start=WarmStart(old)).learn(tmp_path / "new")
    assert 0.6 < new.test_metrics["calibration"] / old.test_metrics["calibration"] < 1.6


def test_forgotten_ids_make_room_for_new_ones(family: dict[str, Bundle], later: Path, tmp_path: Path) -> None:
    old = family["table"]
    new = learner(later, WarmStart(old, forget=50, new_standards=True)).learn(tmp_path / "new")
    tables = new.manifest.training["from"]["tables"]
    assert tables["item"]["forgotten"] > 0
    assert new.encoder.standards != old.encoder.standards
    grown = learner(later, WarmStart(old)).learn(tmp_path / "grown")
    assert new.encoder.vocabularies["item"].rows < grown.encoder.vocabularies["item"].rows


class Interrupted(Exception):
    pass


def test_a_warm_start_goes_on_from_a_checkpoint_of_the_same_bundle(
    family: dict[str, Bundle], later: Path, tmp_path: Path
) -> None:
    stop = [5]

    def progress(report: StepReport) -> None:
        if report.step == stop[0]:
            raise Interrupted

    def learn(start: WarmStart, folder: str, out: str) -> Bundle:
        place = CheckpointSettings(tmp_path / folder, every_s=0.0)
        return learner(later, start, checkpoint=place, progress=progress).learn(tmp_path / out)

    start = WarmStart(family["table"])
    with pytest.raises(Interrupted):
        learn(start, "kept", "resumed")
    stop[0] = 0
    with pytest.raises(ResumeError, match=r"from\.forget was null, is 3"):
        learn(WarmStart(family["table"], forget=3), "kept", "resumed")
    resumed, whole = learn(start, "kept", "resumed"), learn(start, "own", "whole")
    assert resumed.manifest.version == whole.manifest.version


def test_a_bundle_that_was_derived_is_refused(family: dict[str, Bundle], tmp_path: Path) -> None:
    model, representation = quantize_bundle(family["table"], "int8")
    int8 = write_bundle(tmp_path / "int8", model, representation, family["table"].encoder, {}, {})
    with pytest.raises(DataError, match="stores rows in int8"):
        WarmStart(int8)
    model, representation = materialize(family["dhe"], 50)
    hot = write_bundle(tmp_path / "hot", model, representation, family["dhe"].encoder, {}, {})
    with pytest.raises(DataError, match="stores computed rows"):
        WarmStart(hot)


def test_another_schema_is_refused_but_for_name_and_split(family: dict[str, Bundle]) -> None:
    start = WarmStart(family["table"])
    split = SCHEMA.split.model_copy(update={"train": 0.5})
    start.require_schema(SCHEMA.model_copy(update={"name": "next-day", "split": split}))
    with pytest.raises(DataError, match="it has another 'dense'"):
        start.require_schema(SCHEMA.model_copy(update={"dense": SCHEMA.dense[:1]}))
