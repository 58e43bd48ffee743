"""The field of the split in a request, and the requests that are split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import HEADER_BYTES
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.rollout.split import Split
from polyrec.server.app.engine import Engine
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer
from polyrec.server.errors import Invalid
from polyrec.server.rollout.lane_waits import WaitSample
from polyrec.server.rollout.traffic import Arm, RolloutTraffic, value_reader


@pytest.fixture
def ranked(engine: Engine, request_: Any) -> Callable[[str], Rows]:
    """Rows of a ranking for a user."""

    def rows(user: str) -> Rows:
        body = {"context": {**request_.context, "user_id": user}, "candidates": request_.candidates}
        return engine.serving.json_decoder.rank(json.dumps(body).encode()).rows

    return rows


def test_json_rows_of_one_user_have_the_users_value(engine: Engine, ranked: Callable[[str], Rows]) -> None:
    value_of = value_reader("user_id", engine.serving.paths[0].encoder)
    assert value_of(ranked("ann"), []) == b"ann"
    instances = [{"user_id": "ann"}, {"user_id": "ann"}]
    decoder = engine.serving.json_decoder
    assert value_of(decoder.predict(json.dumps({"instances": instances}).encode()), []) == b"ann"
    for other in ({"user_id": "bob"}, {}):
        body = json.dumps({"instances": [*instances, other]}).encode()
        assert value_of(decoder.predict(body), []) is None
    assert value_of(decoder.predict(b'{"instances": [{}]}'), []) is None


def test_a_request_has_its_users_value_in_every_form(engine: Engine, bundle: Bundle, clicks: Path) -> None:
    encoder, decoder, codec = bundle.encoder, engine.serving.json_decoder, engine.serving.oip_codec
    value_of = value_reader("user_id", encoder)
    queries = Queries(read_rows(clicks, encoder.schema, 600), encoder.schema, encoder)
    users = encoder.vocabularies["user_id"].values
    assert users is not None
    known = {value.encode() for value in users.to_pylist()}
    seen = set()
    for i in range(len(queries)):
        query = queries[i]
        ranked = value_of(decoder.rank(queries.rank(query)[0]).rows, [])
        assert ranked is not None
        assert value_of(decoder.predict(queries.predict(query)[0]), []) == ranked
        for body, headers in (
            queries.infer(query, binary=False),
            queries.infer(query),
            queries.infer_ranking(query),
        ):
            length = headers.get(HEADER_BYTES)
            rows = codec.decode(body, None if length is None else int(length)).rows
            assert value_of(rows, []) == (ranked if ranked in known else None)
        seen.add(ranked)
    assert len(seen & known) > 10


def test_ids_without_a_value_or_of_two_users_have_none(
    engine: Engine, request_: Any, tensors: Callable[[Any], dict[str, Any]]
) -> None:
    encoder, inputs = engine.serving.paths[0].encoder, engine.serving.oip_codec.inputs
    value_of, users = value_reader("user_id", encoder), encoder.vocabularies["user_id"]
    at = [f.name for f in encoder.schema.categorical if not f.multi].index("user_id")
    arrays = tensors(request_)
    sparse = arrays["sparse"] = arrays["sparse"].copy()
    for id in (users.missing_id, users.oov_id, users.rows, -1, -(2**63), 2**63 - 1):
        sparse[:, at] = id
        assert value_of(inputs.rows(arrays), []) is None, id
    sparse[:, at] = 0
    assert users.values is not None
    assert value_of(inputs.rows(arrays), []) == users.values[0].as_py().encode()
    sparse[0, at] = 1
    assert value_of(inputs.rows(arrays), []) is None


def test_a_header_may_be_the_field(engine: Engine, ranked: Callable[[str], Rows]) -> None:
    value_of = value_reader("header: X-User", engine.serving.paths[0].encoder)
    assert value_of(ranked("ann"), [(b"x-user", b"7")]) == b"7"
    assert value_of(ranked("ann"), [(b"x-other", b"7")]) is None


@pytest.mark.parametrize("by", ["item_id", "no such", "header:"])
def test_a_split_by_no_field_is_refused(engine: Engine, by: str) -> None:
    with pytest.raises(Invalid):
        value_reader(by, engine.serving.paths[0].encoder)


def test_only_eligible_requests_are_split(
    engine: Engine, request_: Any, ranked: Callable[[str], Rows], tensors: Callable[[Any], dict[str, Any]]
) -> None:
    arms = Arm(engine.serving, False, 0.1), Arm(engine.serving, True, 0.1)
    ids = engine.serving.oip_codec.inputs.rows(tensors(request_))
    traffic = RolloutTraffic(*arms, Split(1.0, "v2"), None, same_ids=False)
    assert traffic.choose(ranked("ann"), [], pinned=False, sender=b"") in arms[1].groups
    assert traffic.choose(ranked("ann"), [], pinned=True, sender=b"") is None
    assert traffic.choose(ids, [], pinned=False, sender=b"") is None
    traffic.same_ids = True
    assert traffic.choose(ids, [], pinned=False, sender=b"") in arms[1].groups
    traffic.value_of = lambda rows, headers: None
    assert traffic.choose(ids, [], pinned=False, sender=b"") is None


def test_records_are_taken_once(engine: Engine, ranked: Callable[[str], Rows]) -> None:
    arm = Arm(engine.serving, True, 0.1)
    group = arm.groups[0]
    answer = Answer(np.zeros(2, np.float32), 0, None, 0.0, 0.0, 2, 0)
    group.answered(0.1, 0.15, answer, ranked("ann"))
    group.answered(0.2, 0.15, answer, ranked("ann"))
    group.failed()
    taken = arm.take()[0]
    assert (taken.took_s, taken.late, taken.failed, len(taken.scores)) == ([0.1, 0.2], 1, 1, 2)
    assert [records.took_s for records in arm.take() if records.took_s] == []


def test_a_budget_that_is_too_small_fails_no_version(engine: Engine, ranked: Callable[[str], Rows]) -> None:
    arm = Arm(engine.serving, True, 0.1)
    group = arm.groups[0]
    answer = Answer(np.zeros(2, np.float32), 0, None, 0.0, 0.0, 2, 0)
    for budget_s in (1e-6, 0.09, 0.1):
        group.failed(budget_s)
        group.answered(0.2, budget_s, answer, ranked("ann"))
    taken = arm.take()[0]
    assert (len(taken.took_s), taken.late, taken.failed) == (3, 1, 1)


def test_cpu_waits_of_a_lane_do_not_count_against_the_version(
    engine: Engine, ranked: Callable[[str], Rows]
) -> None:
    arm = Arm(engine.serving, True, 0.02, sample=lambda: WaitSample(1.0, (5.03,)))
    group = arm.groups[0]
    answer = Answer(np.zeros(2, np.float32), 0, None, 0.0, 0.0, 2, 0)
    group.answered(0.11, 0.1, answer, ranked("ann"), since=(5.0,))  # late by the wait
    group.answered(0.14, 0.1, answer, ranked("ann"), since=(5.0,))  # late anyway
    group.answered(0.01, 0.1, answer, ranked("ann"), since=(5.0,))  # the wait began before it
    group.failed(0.1, since=(5.0,))  # .07 s were left to answer
    group.failed(0.1, since=(4.94,))  # .01 s were left
    group.failed(since=(4.0,))  # a defect
    taken = arm.take()[0]
    assert taken.took_s == [0.11, 0.14, 0.01]
    assert taken.waited_s == pytest.approx([0.03, 0.03, 0.01])
    assert (taken.late, taken.failed, taken.excused) == (1, 2, 1)


def test_rejections_count_unless_lanes_waited_lately(engine: Engine) -> None:
    samples = [WaitSample(0.0, (5.0, 0.0))]
    arm = Arm(engine.serving, True, 0.02, sample=lambda: samples[-1])
    group = arm.groups[0]
    for at_s, waited_s, failed in ((0.1, 5.0, 1), (0.2, 5.004, 1), (0.3, 5.006, 0), (0.5, 5.006, 1)):
        samples.append(WaitSample(at_s, (waited_s, 0.0)))
        group.rejected(0.01)  # a budget that is too small for any version
        group.rejected(0.1)
        taken = arm.take()[0]
        assert (taken.failed, taken.excused) == (failed, 1 - failed), at_s


def test_lanes_are_watched_while_other_requests_come(engine: Engine, ranked: Callable[[str], Rows]) -> None:
    samples = [WaitSample(0.0, (5.0,))]
    canary = Arm(engine.serving, True, 0.02, sample=lambda: samples[-1])
    traffic = RolloutTraffic(Arm(engine.serving, False, 0.02), canary, Split(0.0, "v2"), None, same_ids=True)
    for at_s in (0.5, 1.0, 1.5):
        samples.append(WaitSample(at_s, (6.0,)))  # it waited once, more than a second before the rejection
        assert traffic.choose(ranked("ann"), [], pinned=False, sender=b"") in traffic.stable.groups
    canary.groups[0].rejected(0.1)
    taken = canary.take()[0]
    assert (taken.failed, taken.excused) == (1, 0)


def test_scores_of_so_many_requests_are_kept_in_all_groups_together(
    engine: Engine, ranked: Callable[[str], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrec.server.rollout.traffic.MAX_SCORED", 10)
    arm = Arm(engine.serving, False, 0.1)
    answer, rows = Answer(np.zeros(2, np.float32), 0, None, 0.0, 0.0, 2, 0), ranked("ann")
    for _ in range(2):
        for i in range(40):
            arm.group(b"u%d" % i).answered(0.01, 0.1, answer, rows)
        taken = arm.take()
        assert sum(len(records.took_s) for records in taken) == 40
        assert sum(len(records.scores) for records in taken) == 10


def test_a_canary_leaves_the_stable_version_time_to_answer(engine: Engine) -> None:
    stable, canary = Arm(engine.serving, False, 0.02), Arm(engine.serving, True, 0.02)
    assert [stable.budget_s(b) for b in (0.03, 0.04, 0.1)] == [0.03, 0.04, 0.1]
    assert [canary.budget_s(b) for b in (0.03, 0.04, 0.1)] == [0.03, 0.02, 0.05]


def test_a_value_has_one_group(engine: Engine) -> None:
    arm = Arm(engine.serving, True, 0.1)
    found = [arm.group(b"u%d" % i) for i in range(400)]
    assert set(found) == set(arm.groups)
    assert found == [arm.group(b"u%d" % i) for i in range(400)]


def test_requests_that_are_split_one_by_one_are_grouped_by_client(
    engine: Engine, ranked: Callable[[str], Rows]
) -> None:
    arms = Arm(engine.serving, False, 0.1), Arm(engine.serving, True, 0.1)
    traffic = RolloutTraffic(*arms, Split(0.5, "v2"), None, same_ids=True)
    by_sender = {
        b"10.0.0.%d" % i: [traffic.choose(ranked("ann"), [], False, b"10.0.0.%d" % i) for _ in range(20)]
        for i in range(200)
    }
    groups = {group for found in by_sender.values() for group in found}
    assert groups == {*arms[0].groups, *arms[1].groups}  # a client does not choose the version
    assert all(len(set(found)) == 2 for found in by_sender.values())
