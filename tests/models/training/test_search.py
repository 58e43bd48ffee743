from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile, load_recipe_file
from polyrec.models.training.search import (
    CHOICES,
    FewerRows,
    SearchFiles,
    Trial,
    changed,
    choose,
    draw_changes,
    mean_and_error,
    search_recipe,
    survivors,
)

SMALL = RecipeFile(
    architecture=Architecture(width=4, bottom=(8,), top=(8,), interaction="cat"),
    recipe=Recipe(epochs=1, checks_per_epoch=1),
)


@pytest.fixture(scope="module")
def learner(clicks: Path) -> Learner:
    schema = load_schema("trivago")
    return Learner(open_data(clicks, schema), schema, SMALL)


def trial(candidate: int, loss: float | None, rung: int = 0) -> Trial:
    return Trial(rung, 1.0, candidate, {}, "not run" if loss is None else "done", loss)


def test_the_best_third_and_the_base_go_on() -> None:
    rung = [trial(c, loss) for c, loss in enumerate([0.9, 0.5, 0.4, 0.6, None, 0.3, 0.8, 0.7, 0.2])]
    assert survivors(rung) == [0, 8, 5]
    assert survivors(rung[:3]) == [0, 2]
    assert survivors([trial(0, 0.1), trial(1, None)]) == [0]


def test_the_choice_is_the_best_of_the_last_rung_with_two_trials() -> None:
    first = [trial(0, 0.5), trial(1, 0.4), trial(2, 0.6)]
    assert choose([first, [trial(0, 0.35, 1), trial(1, 0.36, 1)]]).candidate == 0
    assert choose([first, [trial(0, 0.35, 1), trial(1, None, 1)]]).candidate == 1
    assert choose([[trial(0, None), trial(1, None)]]).candidate == 0


def test_a_candidate_must_gain_more_than_two_standard_errors() -> None:
    base, lucky = trial(0, 0.5), replace(trial(1, 0.4), gain=0.1, gain_error=0.06)
    better = replace(trial(2, 0.45), gain=0.05, gain_error=0.02)
    assert choose([[base, lucky, better]]).candidate == 2
    assert choose([[base, lucky]]).candidate == 0


@pytest.mark.parametrize("grouped", [False, True])
def test_the_standard_error_is_that_of_resampled_groups(grouped: bool) -> None:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(200), 5)
    values = random.normal(size=1000) + random.normal(size=200)[group]
    mean, error = mean_and_error(values, group if grouped else None)
    parts = values.reshape(200, 5).mean(1) if grouped else values
    drawn = parts[random.integers(0, parts.size, (2000, parts.size))].mean(1)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(drawn.std(), rel=0.1)


def test_changes_are_valid_distinct_and_the_same_for_every_count() -> None:
    found = draw_changes(RecipeFile(), 40, seed=3)
    assert len(found) == 40
    assert draw_changes(RecipeFile(), 7, seed=3) == found[:7]
    assert len({json.dumps(c) for c in found}) == 40
    for changes in found:
        training = changed(RecipeFile(), changes)
        assert training != RecipeFile()
        for part, values in changes.items():
            for key, value in values.items():
                assert value in CHOICES[part][key]
                assert getattr(getattr(training, part), key) == value
    nested = RecipeFile(architecture=Architecture(widths=(4, 8)))
    assert all("width" not in c.get("architecture", {}) for c in draw_changes(nested, 40, seed=3))


def test_fewer_rows_know_only_ids_that_they_have_often_enough(bundle: Bundle, clicks: Path) -> None:
    schema, encoder = bundle.manifest.schema_, bundle.encoder
    reader = open_data(clicks, schema)
    with encode(reader, encoder, fit_splitter(reader, schema), (TRAIN,)) as data:
        rows = np.arange(200)
        fewer = FewerRows(encoder, data, rows)
        counts: dict[str, Counter[int]] = {table: Counter() for table in schema.tables}
        for r in rows:
            batch = data.batch(np.array([r]))
            for layout, block in ((schema.context, batch.context), (schema.candidate, batch.candidate)):
                for i, f in enumerate(layout.singles):
                    counts[f.table_name][int(block.ranks[0, i])] += 1
                for i, f in enumerate(layout.bags):
                    bag = block.bag_values[block.bag_offsets[i] : block.bag_offsets[i + 1]]
                    counts[f.table_name].update(bag.tolist())
        some = np.arange(100, 400)
        before, after = data.batch(some).exploded(), fewer.batch(some).exploded()
    changes = 0
    for layout, old, new in (
        (schema.context, before.context, after.context),
        (schema.candidate, before.candidate, after.candidate),
    ):
        for i, f in enumerate(layout.singles):
            vocabulary = encoder.vocabulary(f)
            for a, b in zip(old.ranks[:, i].tolist(), new.ranks[:, i].tolist(), strict=True):
                known = (
                    counts[f.table_name][a] >= f.min_count or a == vocabulary.missing_rank or f.cardinality
                )
                assert b == (a if known else vocabulary.oov_rank)
                changes += a != b
    assert changes


@pytest.mark.long
def test_the_same_candidates_give_the_same_search(learner: Learner) -> None:
    one, two = (search_recipe(learner, 600.0, candidates=4) for _ in range(2))
    assert [replace(t, seconds=0) for t in one.trials] == [replace(t, seconds=0) for t in two.trials]
    assert one.training == two.training == changed(SMALL, one.chosen.changes)
    assert [t.candidate for t in one.trials if t.rung == 0] == [0, 1, 2, 3]
    assert all(t.status == "done" for t in one.trials)
    last = [t for t in one.trials if t.rung == 2]
    assert last[0].candidate == 0
    assert last[0].gain is None
    for t in last[1:]:
        assert t.gain == pytest.approx(last[0].log_loss - t.log_loss, abs=1e-6)  # type: ignore[operator]
    assert one.chosen == choose([last])


def test_rows_of_one_class_are_refused_before_the_first_trial(clicks: Path, tmp_path: Path) -> None:
    rows = pq.read_table(clicks)
    where = rows.schema.get_field_index("clicked")
    none = pa.array(np.zeros(rows.num_rows, np.int8))
    pq.write_table(rows.set_column(where, "clicked", none), tmp_path / "none.parquet")
    schema = load_schema("trivago")
    trials: list[Trial] = []
    with pytest.raises(DataError, match="training rows are without a click"):
        search_recipe(
            Learner(open_data(tmp_path / "none.parquet", schema), schema, SMALL), 60, 2, trials.append
        )
    assert not trials


def test_out_of_time_the_base_is_kept_and_the_rest_is_logged_as_not_run(learner: Learner) -> None:
    now = iter(range(10**9))
    logged: list[Trial] = []
    found = search_recipe(learner, 5.0, candidates=4, log=logged.append, clock=lambda: float(next(now)))
    assert found.training == SMALL
    assert tuple(logged) == found.trials
    assert logged[0].status == "stopped"
    assert {t.status for t in logged[1:]} == {"not run"}
    assert found.record()["candidates"] == 4


def test_the_time_limits_the_first_rung_where_no_count_is_given(learner: Learner) -> None:
    ticks = iter(range(10**9))
    found = search_recipe(learner, 300.0, clock=lambda: float(next(ticks)))
    first = [t for t in found.trials if t.rung == 0]
    assert 2 <= len(first) == found.candidates < 81


def test_files_hold_every_trial_and_a_recipe_that_loads(learner: Learner, tmp_path: Path) -> None:
    files = SearchFiles.beside(tmp_path / "runs" / "table")
    found = search_recipe(learner, 600.0, candidates=2, log=files.add)
    files.write_recipe(found, "clicks.parquet")
    assert files.recipe == tmp_path / "runs" / "table.recipe.yaml"
    assert load_recipe_file(files.recipe) == found.training
    assert "log-loss" in files.recipe.read_text().splitlines()[0]
    lines = [json.loads(line) for line in files.log.read_text().splitlines()]
    assert lines == json.loads(json.dumps([asdict(t) for t in found.trials]))
