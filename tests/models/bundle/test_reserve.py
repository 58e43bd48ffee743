from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.data.reader import open_data
from polyrec.models.errors import BundleError
from polyrec.models.runtimes import open_runtime

ROWS = {"item": 7}


def with_reserved(bundle: Bundle, out: Path) -> Bundle:
    model, encoder = reserve(bundle, ROWS)
    return write_bundle(out, model, bundle.manifest.representation, encoder, bundle.manifest.metrics, {})


@pytest.mark.parametrize("kind", ["fp32", "int8", "nested"])
def test_a_bundle_with_reserved_rows_predicts_as_before(
    kind: str, bundle: Bundle, nested: Bundle, clicks: Path, tmp_path: Path
) -> None:
    source = nested if kind == "nested" else bundle
    if kind == "int8":
        model, representation = quantize_bundle(bundle, "int8")
        source = write_bundle(tmp_path / "int8", model, representation, bundle.encoder, {}, {})
    rows = {t: ROWS[t] for t in ROWS if source.encoder.vocabularies[t].values is not None}
    model, encoder = reserve(source, rows)
    out = write_bundle(tmp_path / "out", model, source.manifest.representation, encoder, {}, {})
    data = next(
        iter(open_data(clicks, source.manifest.schema_).batches(source.manifest.schema_.encoded_columns))
    )
    data = data.slice(0, 200)
    for view, before in zip(out.by_width(), source.by_width(), strict=True):
        np.testing.assert_array_equal(
            open_runtime("torch", view).predict(view.encoder.from_arrow(data)),
            open_runtime("torch", before).predict(before.encoder.from_arrow(data)),
        )


def test_reserved_ids_have_the_row_of_unknown_values_and_no_value(bundle: Bundle, tmp_path: Path) -> None:
    out = load_bundle(with_reserved(bundle, tmp_path / "out").path)
    old, new = bundle.encoder.vocabularies["item"], out.encoder.vocabularies["item"]
    assert new.reserved().tolist() == list(range(old.size, old.size + 7))
    assert new.values is not None
    assert old.values is not None
    assert new.values[: old.size].equals(old.values)
    assert new.encode("item", ["unheard of", None]).tolist() == [new.oov_rank, new.missing_rank]
    assert new.encode_arrow(pa.array([None, "unheard of"])).tolist() == [new.missing_rank, new.oov_rank]
    stage = out.stage()
    weight, base = stage.state_dict()["store.weight"], stage.rows.base["item"]  # type: ignore[union-attr, operator, index]
    reserved = weight[base + new.rank_of_id[new.reserved()]]
    np.testing.assert_array_equal(reserved, weight[base + new.oov_rank].expand(7, -1))


def test_reserving_rows_of_an_unknown_table_is_an_error(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="no table 'nothing'; there are"):
        reserve(bundle, {"nothing": 1})
