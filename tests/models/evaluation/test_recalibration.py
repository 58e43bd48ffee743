from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch import nn

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.rename import with_schema
from polyrec.models.bundle.reorder import reordered
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.errors import BundleError, DataError
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.recalibration import observe_data, observe_log, write_recalibrated
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary, ids_of_ranks


@pytest.fixture(scope="module")
def bare(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The trained bundle without metrics and counts, as an imported one is."""
    nothing = {t: np.zeros(v.rows, np.int64) for t, v in bundle.encoder.vocabularies.items()}
    model, encoder = reordered(bundle, nothing)
    out = tmp_path_factory.mktemp("bare") / "bundle"
    return write_bundle(
        out, model, bundle.manifest.representation, encoder, {}, {"imported": {"format": "x"}}
    )


def test_data_give_counts_order_and_the_quality_of_the_test_rows(
    bare: Bundle, bundle: Bundle, clicks: Path, tmp_path: Path
) -> None:
    observed = observe_data(bare, clicks, (TEST,))
    out = write_recalibrated(bare, observed, tmp_path / "out")
    assert out.test_metrics == pytest.approx(bundle.test_metrics, abs=1e-6)
    assert out.manifest.training["imported"] == {"format": "x"}
    assert bare.activations == {}
    assert out.activations.keys() == bundle.activations.keys()
    assert out.manifest.training["calibrated"]["rows"] == observed.rows == 6000
    schema = bundle.manifest.schema_
    reader = open_data(clicks, schema)
    every = calibrate(reader, schema, fit_splitter(reader, schema), which=(0, 1, 2))
    for table, v in out.encoder.vocabularies.items():
        counts = v.counts[v.rank_of_id]
        assert (np.diff(v.counts) <= 0).all()
        expected = every.vocabularies[table]
        known = dict(zip(*_values(expected), strict=True))
        for value, count in zip(*_values(v), strict=True):
            assert count == known[value]
        assert counts.sum() >= sum(known.values()) * 0.5


def _values(v: Vocabulary) -> tuple[list[object], list[int]]:
    values = list(range(v.size)) if v.values is None else v.values.to_pylist()
    return values, v.counts[v.rank_of_id][: v.size].tolist()


def test_all_rows_can_be_measured_without_the_columns_of_the_split(
    bare: Bundle, clicks: Path, tmp_path: Path
) -> None:
    schema = bare.manifest.schema_
    table = pq.read_table(clicks)
    needed = {*schema.columns} - {*schema.split.columns} | {schema.group or schema.label.column}
    pq.write_table(table.select(sorted(needed)), tmp_path / "rows.parquet")
    observed = observe_data(bare, tmp_path / "rows.parquet")
    assert observed.metrics["test"]["rows"] == observed.rows == table.num_rows
    batch = bare.encoder.from_arrow(next(iter(open_data(clicks, schema).batches(schema.columns, 10**6))))
    p = open_runtime("torch", bare).predict(batch)
    label = (table[schema.label.column].to_numpy() > schema.label.positive_above).astype(np.float32)
    assert observed.metrics["test"]["auc"] == pytest.approx(evaluate(p, label).auc, abs=1e-6)


def test_data_without_the_column_of_the_split_name_the_remedy(
    bare: Bundle, clicks: Path, tmp_path: Path
) -> None:
    schema = bare.manifest.schema_
    split = Split(rule="column", columns=("split",))
    imported = with_schema(bare, schema.model_copy(update={"split": split}))
    with pytest.raises(DataError, match=r"no column 'split'; .*; to measure .* give --split all$"):
        observe_data(imported, clicks, (TEST,))
    assert observe_data(imported, clicks).rows == 6000
    no_label = tmp_path / "no_label.parquet"
    pq.write_table(pq.read_table(clicks).drop_columns([schema.label.column]), no_label)
    with pytest.raises(DataError, match=f"no column '{schema.label.column}'; the columns are [^;]*$"):
        observe_data(imported, no_label, (TEST,))


def test_nested_widths_are_measured_each(nested: Bundle, clicks: Path, tmp_path: Path) -> None:
    out = write_recalibrated(nested, observe_data(nested, clicks, (TEST,)), tmp_path / "out")
    for width in nested.widths:
        was, now = (b.at_width(width).test_metrics for b in (nested, out))
        assert now["auc"] == pytest.approx(was["auc"], abs=1e-6)
        layers = {n for n, layer in out.at_width(width).net().named_modules() if isinstance(layer, nn.Linear)}
        assert out.at_width(width).activations.keys() == layers


def test_a_log_gives_counts_and_order_and_leaves_the_quality(bundle: Bundle, tmp_path: Path) -> None:
    (head, *_) = next(iter(bundle.manifest.schema_.tables.values()))
    vocabulary = bundle.encoder.vocabulary(head)
    coldest = int(ids_of_ranks(vocabulary.rank_of_id)[-1])
    (tmp_path / "log.jsonl").write_text(json.dumps({head.name: coldest}) + "\n")
    out = write_recalibrated(bundle, observe_log(bundle, tmp_path / "log.jsonl", ids=True), tmp_path / "out")
    now = out.encoder.vocabulary(head)
    assert now.rank_of_id[coldest] == 0
    assert now.counts.tolist() == [1] + [0] * (now.rows - 1)
    assert out.test_metrics == bundle.test_metrics
    assert out.manifest.activations == bundle.manifest.activations


def test_the_old_bundle_is_replaced_only_when_asked(bundle: Bundle, clicks: Path, tmp_path: Path) -> None:
    observed = observe_data(bundle, clicks, (TEST,))
    first = write_recalibrated(bundle, observed, tmp_path / "out")
    with pytest.raises(BundleError, match="exists already"):
        write_recalibrated(first, observed, tmp_path / "out")
    again = observe_data(first, clicks, (TEST,))
    same = write_recalibrated(first, again, tmp_path / "out", replace=True)
    assert same.manifest.version == first.manifest.version


def test_a_bundle_reads_data_under_other_names(bundle: Bundle, clicks: Path, tmp_path: Path) -> None:
    raw = bundle.manifest.schema_.model_dump()
    names = {f["name"]: f"my_{f['name']}" for f in (*raw["dense"], *raw["categorical"])}
    for f in (*raw["dense"], *raw["categorical"]):
        f["name"] = names[f["name"]]
        if f.get("table"):
            f["table"] = f"my_{f['table']}"
    for f in raw["request"]:
        f["of"], f["to"] = (names.get(f[key], f[key]) for key in ("of", "to"))
    renamed = with_schema(bundle, Schema.model_validate(raw))
    table = pq.read_table(clicks)
    pq.write_table(
        table.rename_columns([names.get(n, n) for n in table.column_names]), tmp_path / "rows.parquet"
    )
    out = write_recalibrated(
        renamed, observe_data(renamed, tmp_path / "rows.parquet", (TEST,)), tmp_path / "out"
    )
    assert load_bundle(out.path).test_metrics == pytest.approx(bundle.test_metrics, abs=1e-6)
    assert {*out.encoder.vocabularies} == {*out.manifest.schema_.tables}


def test_labels_of_one_class_and_empty_splits_are_reported(
    bundle: Bundle, clicks: Path, tmp_path: Path
) -> None:
    label = bundle.manifest.schema_.label.column
    table = pq.read_table(clicks)
    zeros = pa.array(np.zeros(table.num_rows, np.int64))
    table = table.set_column(table.column_names.index(label), label, zeros)
    pq.write_table(table, tmp_path / "zeros.parquet")
    with pytest.raises(DataError, match=r"all labels .* are equal"):
        observe_data(bundle, tmp_path / "zeros.parquet")
    (tmp_path / "log.jsonl").write_text('{"nothing": 1}\n')
    with pytest.raises(DataError, match="none of its values is in the bundle's tables"):
        observe_log(bundle, tmp_path / "log.jsonl")
