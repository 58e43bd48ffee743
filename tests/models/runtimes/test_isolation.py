"""A request is answered as if it were alone, whatever shares its batch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import ROLES
from tests.models.executions import EXECUTIONS, FEWER_BITS
from tests.models.runtimes.conftest import Runtimes

Row = dict[str, Any]
Form = Literal["plain", "ranking"]

BOUND = 1e-5
"""Largest difference of a probability. The order of summation in a product depends on the rows of a batch,
and dot products of features near 1,000 magnify its rounding; a leak of hostile rows would be far larger."""
COUNTS = [0, 1, 2, 3, 4, 7, 15, 16, 17, 33, 64, 65, 130, 300]
"""Companions: none, few enough for kernels of their own, and around powers of two."""

IDS = st.sampled_from(["", "a", "nobody", "\x00", "12", "57", "200", "x" * 300])
NUMBERS = st.floats(0, 1000, width=32)
HOSTILE = st.sampled_from([1e30, -1e30, 1e36, -1e6, 1e6, 1e-40, -1e-45, 0.0])
CODES = st.sampled_from([0, 1, 24, 25, -1, 2**62, 2**70])


def rows_of(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Row]:
    """One row's values of both roles, as a JSON request has them."""
    return st.fixed_dictionaries(
        {
            "price": numbers,
            "price_rank": numbers,
            "user_id": IDS,
            "platform": IDS,
            "city": IDS,
            "device": IDS,
            "last_item": IDS,
            "filters": st.lists(IDS, max_size=4),
            "recent_items": st.lists(IDS, max_size=32),
            "item": IDS,
            "position": CODES,
            "seen": CODES,
        }
    )


def encoded(encoder: Encoder, rows: list[Row], form: Form) -> Batch:
    """A request of these rows; one that ranks has the first row's context."""
    context, candidate = (
        {name: [row[name] for row in rows] for name in encoder.schema.layout(role).names} for role in ROLES
    )
    block = encoder.block("candidate", candidate, len(rows))
    if form == "plain":
        return Batch(encoder.block("context", context, len(rows)), block)
    own = {name: column[:1] for name, column in context.items()}
    return Batch(encoder.block("context", own, 1), block, np.zeros(len(rows), np.int64))


def assert_alone(runtime: Runtime, asked: list[Batch], which: int) -> F32:
    """One of the merged requests has the probabilities that it has alone. Gives these."""
    plain = [b for b in asked if b.context_row is None]
    ranking = [b for b in asked if b.context_row is not None]
    order = [*plain, *ranking]
    place = next(i for i, b in enumerate(order) if b is asked[which])
    first = sum(b.rows for b in order[:place])
    alone = runtime.predict(asked[which])
    merged = runtime.predict(Batch.concat(order))[first : first + alone.size]
    np.testing.assert_allclose(merged, alone, rtol=0, atol=BOUND, equal_nan=True)
    return alone


@pytest.mark.hypothesis
@pytest.mark.parametrize(("name", "precision"), EXECUTIONS)
def test_companions_change_no_answer(
    runtimes: Runtimes, encoder: Encoder, name: str, precision: DensePrecision
) -> None:
    runtime = runtimes(name, precision)
    forms: st.SearchStrategy[Form] = st.sampled_from(["plain", "ranking"])

    @settings(max_examples=settings().max_examples // 4)
    @given(
        honest=st.lists(rows_of(NUMBERS), min_size=1, max_size=5),
        hostile=st.lists(st.tuples(rows_of(HOSTILE), forms), min_size=1, max_size=4),
        form=forms,
        count=st.sampled_from(COUNTS),
        place=st.floats(0, 1),
    )
    def holds(
        honest: list[Row], hostile: list[tuple[Row, Form]], form: Form, count: int, place: float
    ) -> None:
        request = encoded(encoder, honest, form)
        own = [encoded(encoder, [row], its) for row, its in hostile]
        asked = [own[i % len(own)] for i in range(count)]
        which = int(place * count)
        asked.insert(which, request)
        assert np.isfinite(assert_alone(runtime, asked, which)).all()

    holds()


@pytest.mark.parametrize(("name", "precision"), EXECUTIONS)
def test_any_number_of_ordinary_companions_changes_no_answer(
    runtimes: Runtimes, encoder: Encoder, name: str, precision: DensePrecision
) -> None:
    runtime = runtimes(name, precision)
    random = np.random.default_rng(0)

    def one(form: Form, rows: int) -> Batch:
        ids = [str(i) for i in random.integers(0, 300, 40)]
        made = [
            {"price": p, "price_rank": q, "position": int(abs(q)) % 25, "seen": 1, "filters": ids[:3]}
            | {"recent_items": ids[r : 2 * r], "item": ids[r], "last_item": ids[-1], "user_id": ids[0]}
            | {"platform": "", "city": ids[1], "device": "mobile"}
            for r, (p, q) in enumerate(random.normal(0, 2, (rows, 2)).tolist())
        ]
        return encoded(encoder, made, form)

    for form in ("plain", "ranking"):
        asked = [one(form, rows) for rows in (1, 2, 3, 1, 9, 20)]
        for request in asked:
            for other in (asked[0], asked[2], asked[-1]):
                assert_alone(runtime, [other, request], 1)
        whole = runtime.predict(Batch.concat(asked))
        alone = np.concatenate([runtime.predict(b) for b in asked])
        np.testing.assert_allclose(whole, alone, rtol=0, atol=BOUND)


@pytest.mark.parametrize(("name", "precision"), EXECUTIONS)
def test_a_request_without_a_finite_answer_stays_the_only_one(
    runtimes: Runtimes, encoder: Encoder, name: str, precision: DensePrecision
) -> None:
    runtime = runtimes(name, precision)
    honest: Row = {name: None for role in ROLES for name in encoder.schema.layout(role).names}
    for form in ("plain", "ranking"):
        request = encoded(encoder, [honest, honest | {"price": 2.0}], form)
        broken = encoded(encoder, [honest], form)
        broken.candidate.dense[:] = [[np.nan, np.inf]]
        assert not np.isfinite(runtime.predict(broken)).any()
        for place in (0, 1, 2):
            asked = [broken, broken]
            asked.insert(place, request)
            assert np.isfinite(assert_alone(runtime, asked, place)).all()


@pytest.mark.parametrize("made", ["table cat"], indirect=True)
@pytest.mark.parametrize(("name", "precision"), FEWER_BITS)
def test_a_plain_request_is_executed_as_such_beside_one_that_ranks(
    runtimes: Runtimes, encoder: Encoder, name: str, precision: DensePrecision
) -> None:
    runtime = runtimes(name, precision)
    row: Row = {name: None for role in ROLES for name in encoder.schema.layout(role).names}
    rows = [row | {"price": p / 7, "item": str(p)} for p in range(40)]
    plain, ranking = (encoded(encoder, rows, form) for form in ("plain", "ranking"))
    assert np.abs(runtime.predict(plain) - runtime.predict(ranking)).max() > BOUND
    for which in (0, 1):
        assert_alone(runtime, [plain, ranking], which)
