"""Descriptions of traffic: read from short text and files, sizes drawn as described."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.planner.traffic import MLPERF, Sizes, TrafficError, parse_traffic


def test_short_text_is_read():
    traffic = parse_traffic("rate=400, sizes=heavy:120, arrivals=bursty, factor=3, burst_s=2, period_s=8")
    assert traffic.rate == 400
    assert (traffic.sizes.kind, traffic.sizes.mean) == ("heavy", 120)
    assert (traffic.arrivals.kind, traffic.arrivals.factor, traffic.arrivals.period_s) == ("bursty", 3, 8)


def test_sizes_of_mlperf_need_no_mean():
    assert parse_traffic("rate=10,sizes=mlperf").rows_s == pytest.approx(2700)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_files_are_read(tmp_path, suffix):
    file = tmp_path / f"traffic{suffix}"
    raw = {"rate": 50, "sizes": {"kind": "measured", "values": [1, 9], "shares": [3, 1]}}
    file.write_text(json.dumps(raw))
    assert parse_traffic(file).sizes.mean_rows == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "neither"),
        ("rate=x", "'x' is not a number"),
        ("rate=0", "rate"),
        ("rate=5,rate=6", "twice"),
        ("rate=5,size=mlperf", "unknown key 'size'"),
        ("rate=5,sizes", "not KEY=VALUE"),
        ("rate=5,sizes=fixed", "need their mean"),
        ("rate=5,sizes=mlperf:20", "leave 'mean' out"),
        ("sizes=mlperf", "rate"),
        ("rate=5,arrivals=trace", "need 'file'"),
        ("rate=5,arrivals=bursty,burst_s=9,period_s=3", "does not fit"),
        ("rate=5,sizes=measured", "need 'values'"),
        ("none.yaml", "no traffic file"),
    ],
)
def test_mistakes_raise_one_line(text, says):
    with pytest.raises(TrafficError, match=says) as caught:
        parse_traffic(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["- 1\n", "rate: [", "rate: 5\nsize: 3\n"])
def test_malformed_files_raise_one_line(tmp_path, content):
    file = tmp_path / "t.yaml"
    file.write_text(content)
    with pytest.raises(TrafficError, match=r"t\.yaml") as caught:
        parse_traffic(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_json_raises(tmp_path):
    file = tmp_path / "t.json"
    file.write_text("{")
    with pytest.raises(TrafficError, match="is not JSON"):
        parse_traffic(file)


KINDS = st.one_of(
    st.builds(lambda mean: Sizes(kind="fixed", mean=mean), st.floats(1, 900)),
    st.builds(lambda mean: Sizes(kind="lognormal", mean=mean), st.floats(20, 900)),
    st.builds(lambda mean: Sizes(kind="heavy", mean=mean), st.floats(20, 400)),
    st.just(Sizes(kind="mlperf")),
    st.lists(st.integers(1, 500), min_size=1, max_size=9).map(
        lambda values: Sizes(kind="measured", values=tuple(values))
    ),
)


@given(sizes=KINDS, seed=st.integers(0, 2**32))
def test_drawn_sizes_are_rows_with_the_stated_mean(sizes, seed):
    rows = sizes.sample(4000, np.random.default_rng(seed))
    assert rows.dtype == np.int64
    assert rows.min() >= 1
    error = rows.std() / np.sqrt(rows.size)
    assert abs(rows.mean() - sizes.mean_rows) <= 6 * error + 1e-9


def test_mlperf_draws_its_quantiles():
    rows = Sizes(kind="mlperf").sample(40_000, np.random.default_rng(1))
    values, counts = np.unique(rows, return_counts=True)
    assert set(values) == set(MLPERF)
    assert counts[list(values).index(200)] / rows.size == pytest.approx(0.6, abs=0.02)


def test_same_seed_draws_same_sizes():
    sizes = Sizes(kind="heavy", mean=100)
    one, other = (sizes.sample(50, np.random.default_rng(7)) for _ in range(2))
    assert (one == other).all()
