"""Iterations over a real log with real trainings: published, held back, resumed, forced, dropped."""

from __future__ import annotations

import json
import re
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from polyrec.cli.main import main
from polyrec.loop.folder import LoopFolder
from polyrec.loop.steps import adopt, publish
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.errors import DataError
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from tests.polyrec.loop.conftest import DAY_S, Looped, shuffled, with_scaled_weights, with_state

Copied = Callable[[], Looped]


def test_a_day_is_learned_measured_and_published(first_day: Path, bundle: Bundle) -> None:
    looped = with_state(first_day, bundle.path)
    (iteration,) = looped.folder.iterations()
    assert [done.step for done in iteration.done] == ["check", "train", "evaluate", "publish"]
    assert (iteration.serving, iteration.since) == (bundle.manifest.version, None)
    assert iteration.until == "2026-01-06T00:00:00+00:00"
    plan = load_plan(looped.folder.plan)
    assert plan.placement is None  # of the earlier bundle's rows
    (path,) = plan.paths
    new = load_bundle(path.bundle)
    assert new.path.resolve() == (looped.folder.folder_of(1) / "bundle").resolve()
    assert new.manifest.training["from"]["version"] == bundle.manifest.version
    assert iteration.figures("train")["version"] == new.manifest.version
    evaluated = iteration.figures("evaluate")
    assert path.quality == pytest.approx(evaluated["information"][0], abs=1e-6)
    # the newest fifth of the rows was measured, and is learned next
    assert "2026-01-05T23:21" < str(iteration.next_since) < "2026-01-05T23:26"
    served = json.loads(looped.folder.plan.read_text())
    assert served["paths"][0]["bundle"] == "iterations/0001/bundle"


def test_the_next_day_goes_on_from_the_published_bundle(copied: Copied, days: Sequence[pa.Table]) -> None:
    looped = copied()
    first = looped.last
    assert looped.loop.advance() == pytest.approx(first.began + 3600 - looped.now_s)
    looped.log_day(1, days[1])
    # a new process at every step
    for _ in range(4):
        again = copied()
        again.now_s = looped.now_s
        again.loop.advance()
    second = again.last
    assert (second.number, second.state, second.since) == (2, "published", first.next_since)
    assert second.serving == first.figures("train")["version"]
    assert second.figures("check")["reference"] == first.figures("evaluate")["information"][0]
    assert load_bundle(load_plan(again.folder.plan).paths[0].bundle).manifest.training["from"]["version"] == (
        second.serving
    )


def test_a_day_with_shuffled_labels_is_held_back_before_training(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    serving = looped.folder.plan.read_text()
    looped.log_day(1, shuffled(days[1]))
    held = looped.until("held")
    assert held.step == "check"
    assert "labels are wrong, or behavior changed suddenly" in held.reason
    assert held.figures("check")["information"][0] < 0
    assert looped.folder.plan.read_text() == serving
    # the next day is learned without it
    looped.log_day(2, days[2])
    looped.loop.advance()
    assert (looped.last.number, looped.last.since, looped.last.step) == (3, held.until, "train")


def test_a_day_without_labels_is_held_back(copied: Copied, days: Sequence[pa.Table]) -> None:
    looped = copied()
    rows = days[1]
    at = rows.column_names.index("clicked")
    looped.log_day(1, rows.set_column(at, "clicked", pa.array([0] * rows.num_rows)))
    held = looped.until("held")
    assert held.reason.startswith("0 clicks in the newest rows where the serving model expects")


def test_after_a_forced_day_of_one_label_there_is_nothing_to_compare_with(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    rows = days[1]
    at = rows.column_names.index("clicked")
    looped.log_day(1, rows.set_column(at, "clicked", pa.array([0] * rows.num_rows)))
    looped.folder.give("force", looped.until("held").number)
    looped.put_trained()
    held = looped.until("held")
    assert held.figures("evaluate")["information"] == [None, None, None]
    looped.folder.give("force", held.number)
    looped.until("published")
    looped.log_day(2, days[2])
    checked = looped.until("train")
    assert checked.reason.endswith("; nothing to compare it with")


def test_an_operator_forces_what_was_held_and_drops_it_later(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    looped.log_day(1, shuffled(days[1]))
    held = looped.until("held")
    looped.folder.hold("train", "look first")
    looped.folder.give("force", held.number)
    assert looped.loop.advance() == looped.loop.every_s
    assert (looped.last.state, looped.last.step, looped.last.forced) == ("running", "train", ("check",))
    assert "held before train by an operator: look first" in looped.said[-1]
    looped.folder.give("drop", held.number)
    looped.folder.release("train")
    looped.loop.advance()
    assert looped.last.state == "dropped"
    assert looped.folder.controls() == set()
    assert looped.last.next_since == held.until


def test_a_dropped_training_is_ended(copied: Copied, days: Sequence[pa.Table]) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    looped.until("train")
    own, number = looped.folder.folder_of(looped.last.number), looped.last.number

    def drop() -> None:
        while not (own / "train.log").exists():
            time.sleep(0.01)
        looped.folder.give("drop", number)

    asking = threading.Thread(target=drop)
    asking.start()
    looped.loop.advance()
    asking.join()
    assert looped.last.state == "dropped"
    assert not (own / "bundle").exists()


@pytest.mark.parametrize("margin", [0.001, 10.0])
def test_a_worse_bundle_is_held_back_by_its_evaluation_whatever_the_margin(
    copied: Copied, days: Sequence[pa.Table], margin: float
) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    looped.until("train")
    looped.put_trained(with_scaled_weights(looped.served().model(), lambda _: 0.5))
    looped.set(margin=margin)
    held = looped.until("held")
    assert held.step == "evaluate"
    assert held.reason.startswith("worse: information gain")
    assert re.search(r"; it expects [\d,]+ clicks where there are [\d,]+$", held.reason)
    assert held.next_since == held.until
    assert not (looped.folder.folder_of(2) / "plan.json").exists()


def test_a_bundle_that_is_not_shown_to_be_as_good_waits_for_more_rows(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    looped.until("train")
    random = torch.Generator().manual_seed(2)
    looped.put_trained(
        with_scaled_weights(
            looped.served().model(), lambda shape: 1 + 0.02 * torch.randn(shape, generator=random)
        )
    )
    looped.set(margin=1e-6)
    held = looped.until("held")
    low, high = held.figures("evaluate")["differences"]["table@cpu"][1:]
    assert low < 0 < high, held.reason
    assert held.reason.startswith("not shown to be at most 1e-06 worse: information gain")
    assert held.next_since == held.since


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"least_clicks": 10**6, "max_calibration": 1e9}, "of 1,000,000 clicks in the newest rows so far"),
        ({"drift": 0.9}, "it lost less than 0.9"),
    ],
)
def test_the_check_waits_for_clicks_and_for_drift(
    copied: Copied, days: Sequence[pa.Table], settings: dict[str, float], reason: str
) -> None:
    looped = copied()
    looped.set(**settings)
    first = looped.last
    looped.log_day(1, days[1])
    waiting = looped.until("waiting")
    assert reason in waiting.reason
    looped.now_s += 3600
    looped.loop.advance()
    assert (looped.last.number, looped.last.since) == (waiting.number, first.next_since)
    assert looped.last.began == looped.now_s


def test_the_check_waits_where_there_are_no_rows(copied: Copied, tmp_path: Path) -> None:
    looped = copied()
    plan, looped.loop.folder = looped.folder.plan, LoopFolder(tmp_path / "new")
    looped.loop.since = "2026-01-07"
    looped.now_s += 7 * 86_400
    looped.loop.begin(plan)
    assert "has no request since 2026-01-07 before 2026-01-13" in looped.until("waiting").reason


def test_a_failed_training_is_tried_again_later_and_later(copied: Copied, days: Sequence[pa.Table]) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    looped.set(train_options=("--epochs", "-3"))
    looped.until("train")
    assert [looped.loop.advance() for _ in range(2)] == [30.0, 60.0]
    assert (looped.last.state, looped.last.attempts) == ("running", 2)
    assert "training ended with status 2: polyrec: error:" in looped.last.reason
    looped.set(train_options=("--epochs", "1"))
    assert looped.until("published").attempts == 0


def test_a_loop_survives_a_full_disk_and_continues_when_there_is_room(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        before = looped.folder.last()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            assert looped.loop.advance_or_wait() == 30.0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        # neither the next iteration's first record nor its check's
        assert looped.folder.last() == before
        looped.loop.advance_or_wait()
    assert (
        looped.said.count(f"'{looped.folder.path}' cannot be used and will be tried again: File too large")
        == 2
    )
    assert (looped.last.number, looped.last.step) == (2, "evaluate")


@pytest.mark.parametrize("lost", ["log/log.json", "state/plan.json"])
def test_a_loop_survives_that_its_log_or_plan_is_gone_for_a_while(copied: Copied, lost: str) -> None:
    """As on a network disk, or where the log's folder was emptied."""
    looped = copied()
    before = looped.last
    looped.now_s += DAY_S
    file = looped.folder.path.parent / lost
    aside = file.rename(file.with_suffix(".gone"))
    assert looped.loop.advance_or_wait() == 30.0
    assert looped.folder.last() == before
    assert looped.said[-1].startswith("failed and will be retried: ")
    assert file.name in looped.said[-1]
    aside.rename(file)
    looped.loop.advance_or_wait()
    assert (looped.last.number, looped.last.state) == (before.number + 1, "waiting")


def test_older_bundles_are_removed_and_records_stay(copied: Copied, days: Sequence[pa.Table]) -> None:
    looped = copied()
    looped.set(keep=0)
    looped.log_day(1, days[1])
    looped.until("train")
    looped.put_trained()
    looped.until("published")
    assert not (looped.folder.folder_of(1) / "bundle").exists()
    assert (looped.folder.folder_of(1) / "record.json").exists()
    looped.served()


def test_a_loop_killed_between_plan_and_record_ends_as_if_it_had_not_been(
    copied: Copied, days: Sequence[pa.Table]
) -> None:
    looped = copied()
    looped.log_day(1, days[1])
    looped.until("train")
    looped.put_trained()
    iteration = looped.until("publish")
    publish(iteration, looped.folder)
    adopt(iteration, looped.folder, keep=3)
    adopted = looped.folder.plan.read_text()
    assert '"iterations/0002/bundle"' in adopted
    again = copied()
    again.now_s = looped.now_s
    assert again.last.step == "publish"
    assert again.until("published").serving == iteration.serving
    assert again.folder.plan.read_text() == adopted


def test_a_clock_that_was_wrong_by_a_year_stops_no_loop(copied: Copied, days: Sequence[pa.Table]) -> None:
    """Neither until the next iteration, nor until rows of that year come."""
    looped = copied()
    looped.now_s += 365 * DAY_S
    looped.set(least_clicks=1)
    looped.until("train")  # with the rows up to that time
    looped.folder.give("drop", looped.last.number)
    looped.loop.advance()
    looped.now_s -= 365 * DAY_S
    looped.loop.advance()
    until = "2026-01-06T00:00:00+00:00"
    assert "the clock was set back: rows from 2026-01-06 00:00:00 UTC on are used" in looped.said
    assert (looped.last.since, looped.last.until, looped.last.state) == (until, until, "waiting")
    looped.log_day(1, days[1])
    assert looped.until("train").since == until
    # the next one begins after its usual time
    looped.folder.give("drop", looped.last.number)
    assert looped.loop.advance() == looped.loop.every_s


def test_another_plan_is_taken_where_the_serving_one_was_removed(copied: Copied, nested: Bundle) -> None:
    looped = copied()
    looped.folder.plan.unlink()
    save_plan(single_path_plan(nested.path, "table", "onnx", width=8), looped.folder.path / "other.json")
    looped.loop.begin(looped.folder.path / "other.json")
    looped.now_s += 3600
    looped.loop.advance()
    assert looped.last.serving == nested.manifest.version
    reference = looped.last.figures("check")["reference"]
    assert reference == nested.at_width(8).test_metrics["information"]


@pytest.mark.parametrize("ended", ["running", "held"])
def test_an_iteration_of_another_plan_is_dropped_and_a_new_one_has_its_rows(
    copied: Copied, days: Sequence[pa.Table], nested: Bundle, ended: str
) -> None:
    """It would be compared with another model than the one that its bundle continues."""
    looped = copied()
    looped.log_day(1, days[1])
    begun = looped.until("train")
    if ended == "held":  # and is forced under the other plan
        looped.put_trained(with_scaled_weights(looped.served().model(), lambda _: 0.5))
        begun = looped.until("held")
        looped.folder.give("force", begun.number)
    looped.folder.plan.unlink()
    save_plan(single_path_plan(nested.path, "table", "onnx", width=8), looped.folder.path / "other.json")
    looped.loop.begin(looped.folder.path / "other.json")
    looped.loop.advance()
    dropped, new = looped.folder.iterations()[-2:]
    versions = begun.serving, nested.manifest.version
    reason = "it began with version {}, the loop's plan now has version {}".format(*versions)
    assert (dropped.number, dropped.state, dropped.reason) == (begun.number, "dropped", reason)
    assert f"iteration {begun.number}: dropped: {reason}" in looped.said
    # begun at once, not after the usual time
    assert (new.number, new.serving, new.since) == (begun.number + 1, nested.manifest.version, begun.since)
    assert [done.step for done in new.done] == ["check"]


def test_a_bundle_that_cannot_be_continued_is_refused_at_the_start(tmp_path: Path, bundle_dir: Path) -> None:
    """Rows in int8, which its first training would refuse after the first wait."""
    distilled = tmp_path / "int8"
    assert main(["distill", str(bundle_dir), "--representation", "int8", "--out", str(distilled)]) == 0
    looped = with_state(tmp_path / "loop", distilled)
    with pytest.raises(DataError, match="stores rows in int8: continue the fp32 bundle"):
        looped.loop.begin(tmp_path / "loop" / "plan.json")
    assert not looped.folder.plan.exists()
