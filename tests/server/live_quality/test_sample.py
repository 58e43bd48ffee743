"""Requests are sampled once their labels are final, and read again as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.parquet import parquet_files
from polyrec.models.data.prediction_log.log_format import REQUESTS
from polyrec.models.runtimes import open_runtime
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_inputs import CONTEXT_LENGTHS, Inputs
from polyrec.server.codecs.rows import RankedTensors, Tensors
from polyrec.server.live_quality.sample import FILES, LogSampler
from polyrec.server.prediction_log.writer import LIMITS
from tests.server.conftest import Request
from tests.server.live_quality.conftest import WINDOW_S, LogFolder
from tests.server.prediction_log.test_id_values import RandomRows


def sampler(log_folder: LogFolder, requests: int = 100, span_s: float = 86400) -> LogSampler:
    return LogSampler(log_folder.folder, log_folder.schema, span_s, settle_s=0, requests=requests)


def test_a_request_is_taken_once_and_not_before_its_window_has_passed(
    log_folder: LogFolder, request_: Request
) -> None:
    log_folder.add(request_, "r")
    log_folder.label("r", [1], [1])
    log_folder.write()
    sampled = sampler(log_folder)
    assert sampled.sample(log_folder.final_s - WINDOW_S - 10) == []
    (found,) = sampled.sample(log_folder.final_s)
    assert found.labels.binary.tolist() == [float(i == 1) for i in range(len(request_.rows))]
    assert sampled.sample(log_folder.final_s) == []


@pytest.mark.parametrize("ranking", [True, False])
def test_the_body_gives_the_same_rows(log_folder: LogFolder, request_: Request, ranking: bool) -> None:
    scores = np.linspace(0, 1, len(request_.rows), dtype=np.float32)
    log_folder.add(request_, "r", scores, ranking=ranking)
    log_folder.write()
    (found,) = sampler(log_folder).sample(log_folder.final_s)
    np.testing.assert_array_equal(found.served, scores)
    decoder = JsonDecoder(log_folder.schema, LIMITS)
    if ranking:
        given = {"context": request_.context, "candidates": request_.candidates}
        assert decoder.rank(found.body).rows.candidate == decoder.rank(orjson.dumps(given)).rows.candidate
        assert decoder.rank(found.body).rows.context == decoder.rank(orjson.dumps(given)).rows.context
    else:
        rows = decoder.predict(found.body)
        expected = decoder.predict(orjson.dumps({"columns": request_.columns}))
        assert (rows.context, rows.candidate) == (expected.context, expected.candidate)


def asked_for(bundle: Bundle, ranking: RankedTensors) -> Tensors | RankedTensors:
    """The rows that a server makes of a request with these tensors."""
    assert ranking.request_lengths is not None
    tensors = {CONTEXT_LENGTHS: ranking.request_lengths}
    for role, block in (("context", ranking.context), ("candidate", ranking.candidate)):
        tensors |= {f"{role}.dense": block.dense, f"{role}.sparse": block.sparse}
        for name, (ids, lengths) in block.bags.items():
            tensors |= {f"{name}.values": ids, f"{name}.lengths": lengths}
    return Inputs(bundle.manifest.schema_, LIMITS, bundle.encoder.vocabularies).rows(tensors)


@pytest.mark.parametrize("candidates", [[3, 1, 2], [1, 1], [4]])
def test_a_request_of_several_contexts_is_scored_as_its_rows(
    log_folder: LogFolder, nested: Bundle, candidates: list[int]
) -> None:
    ranking = RandomRows(nested, 0).ranking(candidates)
    for f in (f for f in log_folder.schema.categorical if f.multi):
        for bags in (ranking.context.bags, ranking.candidate.bags):
            if f.name in bags:
                bags[f.name][0][:] %= nested.encoder.vocabulary(f).size  # none of the missing row
    rows = asked_for(nested, ranking)
    log_folder.add_ids(nested, rows, "r")
    log_folder.label("r", [rows.rows - 1], [1])
    log_folder.write()
    (found,) = sampler(log_folder).sample(log_folder.final_s)
    assert found.labels.binary.tolist() == [0.0] * (rows.rows - 1) + [1.0]
    decoder = JsonDecoder(log_folder.schema, LIMITS)
    asked = decoder.rank(found.body).rows if found.ranking else decoder.predict(found.body)
    model = open_runtime("torch", nested, "cpu", "fp32")
    expected = model.predict(rows.encode(nested.encoder)).copy()
    np.testing.assert_allclose(model.predict(asked.encode(nested.encoder)), expected, rtol=1e-5)


def test_ids_without_a_value_are_left_out_of_lists(log_folder: LogFolder, nested: Bundle) -> None:
    ranking = RandomRows(nested, 0).ranking([2])
    (feature,) = (f for f in log_folder.schema.categorical if f.name == "recent_items")
    vocabulary = nested.encoder.vocabulary(feature)
    assert vocabulary.values is not None
    ids = np.array([vocabulary.oov_id, 1, vocabulary.missing_id])
    bags = {**ranking.context.bags, "recent_items": (ids, np.array([3]))}
    context = replace(ranking.context, bags=bags)
    log_folder.add_ids(nested, asked_for(nested, replace(ranking, context=context)), "r")
    log_folder.write()
    (found,) = sampler(log_folder).sample(log_folder.final_s)
    rows = JsonDecoder(log_folder.schema, LIMITS).rank(found.body).rows
    at = log_folder.schema.context.names.index("recent_items")
    (values,) = rows.context[at] or ()
    assert values == [vocabulary.values[1].as_py()]


def test_work_does_not_grow_with_the_traffic(log_folder: LogFolder, requests: list[Request]) -> None:
    for part in range(FILES + 4):
        for i in range(5):
            log_folder.add(requests[i], f"{part}-{i}")
        log_folder.write()
    sampled = sampler(log_folder, requests=32)
    found = sampled.sample(log_folder.final_s)
    assert len(found) == 32
    rest = sampled.sample(log_folder.final_s)
    assert len({r.labels.request_id for r in (*found, *rest)}) == len(found) + len(rest)


def test_requests_with_the_id_of_another_are_left_out(log_folder: LogFolder, requests: list[Request]) -> None:
    """Otherwise a client that knows ids had its own rows measured with the labels of others."""
    for file in range(3):
        for i in range(5):
            log_folder.add(requests[i], f"{file}-{i}")
            log_folder.add(requests[-1], f"{2 - file}-{i % 2}")
            log_folder.label(f"{file}-{i}", [0], [1])
        log_folder.write()
    sampled = sampler(log_folder)
    found = sampled.sample(log_folder.final_s)
    assert {r.labels.request_id for r in found} == {f"{file}-{i}" for file in range(3) for i in (2, 3, 4)}
    assert sampled.repeated == 30 - len(found)


def test_old_and_damaged_files_are_left_out(log_folder: LogFolder, request_: Request) -> None:
    log_folder.add(request_, "r")
    log_folder.write()
    hours = 3 * 3600.0
    assert sampler(log_folder, span_s=hours).sample(log_folder.final_s + 2 * hours) == []
    file: Path = parquet_files(log_folder.folder / REQUESTS)[0]
    file.write_bytes(file.read_bytes()[:-20])
    assert sampler(log_folder).sample(log_folder.final_s) == []


def test_requests_without_labels_are_negatives_or_left_out(
    tmp_path: Path, log_folder: LogFolder, request_: Request
) -> None:
    log_folder.add(request_, "r")
    log_folder.write()
    (found,) = sampler(log_folder).sample(log_folder.final_s)
    assert not found.labels.values.any()
    rules = tmp_path / "log.json"
    rules.write_text(rules.read_text().replace("negative", "leave_out"))
    assert sampler(log_folder).sample(log_folder.final_s) == []
