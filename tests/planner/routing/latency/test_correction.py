"""Corrections follow slowdowns fast, model errors slowly, and single outliers hardly at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.routing.latency.correction import FIRST_BATCHES, MARGIN, MAX_BIAS, WINDOW_S, Correction
from polyrec.planner.routing.latency.latency_table import LatencyTable
from tests.planner.routing.latency import reference

MEDIAN_S, TAIL_S = 1e-3, 1.5e-3
CURVE = LatencyTable(LatencyModel(rows=(1, 1000), median_s=(MEDIAN_S, 11e-3), tail_s=(TAIL_S, 16e-3)), 1000)
SPREAD = np.log(1.5) / 2.326


def fed(seconds, correction: Correction | None = None, path: int = 0) -> Correction:
    correction = correction or Correction([CURVE, CURVE])
    for took_s in seconds:
        correction.observe(path, 1, float(took_s))
    return correction


def noise(n: int, seed: int = 0) -> np.ndarray:
    return np.exp(SPREAD * np.random.default_rng(seed).standard_normal(n))


def test_batches_as_profiled_leave_the_factors_at_one():
    correction = fed(MEDIAN_S * noise(3000))
    assert correction.median[0] == pytest.approx(1.0, abs=0.12)
    assert correction.tail[0] == pytest.approx(1.0, abs=0.35)
    assert correction.factor == 1.0


def test_tenfold_slowness_and_recovery_are_known_after_two_batches():
    correction = fed(MEDIAN_S * noise(50))
    fed([10 * MEDIAN_S] * 2, correction)
    assert correction.factor == pytest.approx(10, rel=0.3)
    assert correction.median[1] == pytest.approx(10, rel=0.3)
    fed([MEDIAN_S] * 2, correction)
    assert correction.factor == 1.0


def test_one_outlier_moves_little():
    correction = fed(MEDIAN_S * noise(200))
    before = correction.median[0]
    fed([50 * MEDIAN_S], correction)
    assert correction.factor == 1.0
    assert correction.median[0] == pytest.approx(before, rel=0.03)


@pytest.mark.parametrize("error", [0.7, 1.25])
def test_a_wrong_model_of_one_path_is_corrected_for_that_path_only(error):
    correction = fed(error * MEDIAN_S * noise(400))
    assert correction.median[0] == pytest.approx(error, rel=0.12)
    assert correction.median[1] == 1.0


def test_a_heavier_tail_than_profiled_is_learned():
    rng = np.random.default_rng(1)
    took = np.where(rng.random(3000) < 0.05, 2.4, 1.0) * MEDIAN_S
    assert fed(took).tail[0] * TAIL_S > 2.0 * MEDIAN_S


def test_reset_forgets_slowness():
    correction = fed([10 * MEDIAN_S] * 5)
    correction.reset()
    assert correction.factor == 1.0
    assert correction.median[0] < 1.2


def test_a_new_path_is_learned_quickly():
    assert fed(1.5 * MEDIAN_S * noise(20)).median[0] == pytest.approx(1.5, rel=0.12)


def test_paths_six_percent_apart_are_ordered_correctly():
    slow, fast = (fed(s * MEDIAN_S * noise(2000, seed)) for seed, s in enumerate((1.0, 0.94)))
    assert fast.median[0] < slow.median[0]


def test_slow_first_batches_of_a_path_are_ignored():
    correction = fed([50 * MEDIAN_S] * FIRST_BATCHES)
    assert (correction.factor, correction.median, correction.tail) == (1.0, [1.0, 1.0], [1.0, 1.0])
    fed([50 * MEDIAN_S] * 2, correction)
    assert correction.factor > 10
    correction.reset(anew=True)
    fed([50 * MEDIAN_S] * FIRST_BATCHES, correction)
    assert correction.factor == 1.0


def test_unconfirmed_corrections_decay_within_seconds():
    correction = fed(MEDIAN_S * noise(50))
    fed([30 * MEDIAN_S] * 20, correction)
    for i in range(30):
        correction.tick(0.1 * i, 0.1, 1)
    assert correction.factor < 1.1
    assert correction.median == pytest.approx([1.0, 1.0], rel=0.1)
    assert max(correction.tail) < 1.3


def test_a_shift_decays_unless_three_batches_confirm_it_between_two_ticks():
    correction = fed(MEDIAN_S * noise(50))
    correction.tick(0.1, 0.1, 1)
    fed([10 * MEDIAN_S] * 3, correction)
    slow = correction.factor
    correction.tick(0.2, 0.1, 1)
    assert correction.factor == slow
    fed([10 * MEDIAN_S] * 2, correction)
    correction.tick(0.3, 0.1, 1)
    assert 1 < correction.factor < 0.9 * slow


def test_a_tick_ignores_delays_that_do_not_last_from_one_tick_to_the_next():
    correction = fed(MEDIAN_S * noise(50))
    correction.tick(0.1, 0.1, 1)
    fed([*MEDIAN_S * noise(50), *[20 * MEDIAN_S] * 3], correction)
    correction.tick(0.2, 0.1, 1)
    assert correction.median[0] == pytest.approx(20, rel=0.3)
    assert correction.undisturbed == pytest.approx([1.0, 1.0], rel=0.2)
    fed([20 * MEDIAN_S] * 50, correction)
    correction.tick(0.3, 0.1, 1)
    assert correction.undisturbed[0] == pytest.approx(20, rel=0.3)
    fed([MEDIAN_S] * 2, correction)
    correction.tick(0.4, 0.1, 1)
    assert correction.undisturbed[0] == pytest.approx(1.0, rel=0.6)


@pytest.mark.parametrize("every", [2, 5])
def test_single_batches_hardly_move_a_bias_where_few_are_executed(every):
    """every: ticks for each batch."""
    correction, found = Correction([CURVE, CURVE]), []
    for i, took_s in enumerate(1.2 * MEDIAN_S * noise(600)):
        if i % every == 0:
            fed([took_s], correction)
        correction.tick(0.1 * i, 0.1, 1)
        found.append(correction.median[0])
    assert np.std(found[300:]) < 0.04


def test_at_ten_batches_a_second_the_present_outweighs_a_disturbance_within_two_seconds():
    correction = fed(MEDIAN_S * noise(100))
    fed([30 * MEDIAN_S] * 20, correction)
    for i, took_s in enumerate(MEDIAN_S * noise(20, 1)):
        fed([took_s], correction)
        correction.tick(0.1 * i, 0.1, 1)
    assert correction.median[0] == pytest.approx(1.0, rel=0.2)
    assert correction.tail[0] < 1.5


CHEAP, USED, DEAR = (
    LatencyTable(LatencyModel(rows=(1, 100), median_s=(s, 2 * s), tail_s=(2 * s, 4 * s)), 100)
    for s in (2e-4, 4e-4, 1.6e-3)
)


def executed_alone(took_s: float, seconds: float = 60.0) -> Correction:
    """Makes three paths of which only the second one executes, each batch of one row in took_s."""
    correction = Correction([CHEAP, USED, DEAR])
    for i in range(round(10 * seconds)):
        fed([took_s] * 10, correction, path=1)
        correction.tick(0.1 * i, 0.1, 1)
    return correction


def test_a_dearer_path_that_is_not_executed_is_expected_to_take_the_same_extra_seconds():
    correction = executed_alone(6e-4)
    assert correction.median[1] * USED.median[1] == pytest.approx(6e-4, rel=0.01)
    assert correction.median[2] * DEAR.median[1] == pytest.approx(1.6e-3 + 2e-4, rel=0.01)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5, 2.5])
def test_a_cheaper_path_that_is_not_executed_is_expected_to_be_off_by_the_same_factor(factor):
    correction = executed_alone(factor * 4e-4)
    assert correction.median[0] == pytest.approx(factor, rel=0.01)
    assert correction.undisturbed[0] == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("slowdown", [0.8, 1.25])
def test_paths_that_are_not_executed_follow_the_speed_of_the_core_at_once(slowdown):
    correction = executed_alone(6e-4)
    before = list(correction.median)
    for i in range(5):
        fed([slowdown * 6e-4] * 40, correction, path=1)
        correction.tick(60.0 + 0.1 * i, 0.1, 1)
    assert correction.median[1] == pytest.approx(slowdown * before[1], rel=0.02)
    assert correction.median[0] == pytest.approx(slowdown * before[0], rel=0.02)
    assert (correction.median[2] > before[2]) == (slowdown > 1)


def test_a_path_measured_on_a_slower_core_is_not_held_slow_against_one_measured_now():
    correction = executed_alone(6e-4)
    for i in range(10):
        fed([1.25 * 6e-4] * 40, correction, path=1)
        fed([1.25 * 1.8e-3] * 40, correction, path=2)
        correction.tick(60.0 + 0.1 * i, 0.1, 1)
    for i in range(10):
        fed([1.8e-3] * 40, correction, path=2)
        correction.tick(61.0 + 0.1 * i, 0.1, 1)
    assert correction.median[1] * USED.median[1] <= 6e-4


def test_first_batches_of_a_path_hardly_change_other_paths():
    correction = executed_alone(4e-4)
    fed([2 * 1.6e-3] * 30, correction, path=2)
    correction.tick(60.0, 0.1, 1)
    assert correction.median[2] > 1.2
    assert correction.median[1] == pytest.approx(1.0, rel=0.05)


@given(
    took=st.lists(st.tuples(st.integers(0, 2), st.floats(0.3, 3.5)), min_size=1, max_size=3),
    medians=st.lists(st.floats(1e-4, 1e-2), min_size=4, max_size=4, unique=True),
)
def test_paths_that_are_not_executed_keep_the_order_of_their_profiles(took, medians):
    tables = [
        LatencyTable(LatencyModel(rows=(1, 10), median_s=(s, 2 * s), tail_s=(2 * s, 4 * s)), 10)
        for s in sorted(medians)
    ]
    correction = Correction(tables)
    executed = {path for path, _ in took}
    for i in range(600):
        for path, factor in took:
            fed([factor * tables[path].median[1]] * 3, correction, path)
        correction.tick(0.1 * i, 0.1, 1)
    unused_s = [correction.median[p] * table.median[1] for p, table in enumerate(tables) if p not in executed]
    assert unused_s == sorted(unused_s)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 1), st.floats(1e-5, 1.0)),
            st.just("tick"),
        ),
        max_size=120,
    )
)
def test_no_prediction_exceeds_what_was_observed_in_the_last_seconds(steps):
    """A shift of the lane, a bias and a wide tail do not multiply each other without bound."""
    correction = Correction([CURVE, CURVE])
    now_s = 0.0
    seen: list[tuple[float, float]] = []
    for one in steps:
        if one == "tick":
            now_s += 0.1
            correction.tick(now_s, 0.1, 1)
        else:
            correction.observe(one[0], 1, one[1])
            seen.append((now_s, one[1]))
        slowest_s = max((s for at_s, s in seen if now_s - at_s <= 2 * WINDOW_S + 0.2), default=0.0)
        max_s = np.exp(MAX_BIAS) * TAIL_S + MARGIN * slowest_s
        for path in (0, 1):
            assert correction.tail[path] * TAIL_S <= max_s * (1 + 1e-9)
            assert correction.median[path] * MEDIAN_S <= max_s * (1 + 1e-9)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from([1, 20, 1000]),
                st.sampled_from([0.0, 1e-8, 5e-4, 1e-3, 1.3e-3, 2e-3, 1e-2, 5e-2, 2.0]),
            ),
            st.sampled_from([1e-3, 0.1, 0.7, 3.0]),
        ),
        max_size=80,
    )
)
def test_corrections_equal_the_reference(steps):
    latencies = [
        CURVE,
        LatencyTable(LatencyModel(rows=(1, 50), median_s=(4e-4, 5e-4), tail_s=(9e-4, 9e-4)), 50),
    ]
    fast, plain = Correction(latencies), reference.Correction(latencies)
    now_s = 0.0
    for one in steps:
        for correction in (fast, plain):
            if isinstance(one, tuple):
                path, rows, took_s = one
                correction.observe(path, min(rows, latencies[path].rows), took_s)
            else:
                correction.tick(now_s + one, one, 20)
        now_s += 0.0 if isinstance(one, tuple) else one
        assert fast.median == pytest.approx(plain.median)
        assert fast.tail == pytest.approx(plain.tail)
        assert fast.cautious_tail == pytest.approx(plain.cautious_tail)
        assert fast.undisturbed == pytest.approx(plain.undisturbed)


def test_a_path_slower_than_its_profile_is_still_known_to_be_after_ten_seconds_of_another_path():
    correction = executed_alone(4e-4)
    for i in range(20):
        fed([4e-4] * 40, correction, path=1)
        fed([1.3 * 2e-4] * 40, correction, path=0)
        correction.tick(60.0 + 0.1 * i, 0.1, 1)
    for i in range(100):
        fed([1.1 * 4e-4] * 40, correction, path=1)
        correction.tick(62.0 + 0.1 * i, 0.1, 1)
    assert 1.1 < correction.median[0] / correction.median[1] < 1.4


@pytest.mark.parametrize(
    ("own", "best"), [((1.5, 1.0, 1.0), 1), ((1.15, 1.0, 1.0), 1), ((1.0, 1.0, 0.8), 2), ((1.3, 1.3, 1.0), 2)]
)
def test_the_most_valuable_path_is_found_on_a_core_whose_speed_changes(own, best):
    """own: what paths take over their profiles. Each is chosen by value a second, as past capacity."""
    values, used = (1.0, 1.08, 1.2), []
    tables = [
        LatencyTable(LatencyModel(rows=(1, 100), median_s=(s, 2 * s), tail_s=(2 * s, 4 * s)), 100)
        for s in (1e-3, 1.1e-3, 1.4e-3)
    ]
    random = np.random.default_rng(0)
    correction, path, speed = Correction(tables), 2, 0.0
    for i in range(400):
        speed += 0.1 * random.standard_normal() - 0.1 * speed
        took_s = np.exp(speed) * own[path] * tables[path].median[1] * noise(50, i)
        fed(took_s, correction, path)
        correction.tick(0.1 * i, 0.1, 1)
        used.append(path)
        per_second = [
            v / (f * t.median[1]) for v, f, t in zip(values, correction.undisturbed, tables, strict=True)
        ]
        path = int(np.argmax(per_second))
    earned = [v / (o * t.median[1]) for v, o, t in zip(values, own, tables, strict=True)]
    assert int(np.argmax(earned)) == best
    assert np.mean([earned[p] for p in used[100:]]) > 0.985 * earned[best]
