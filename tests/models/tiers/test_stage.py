from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, dense_slots, initial_net
from polyrec.models.dlrm.precision import Precision
from polyrec.models.dlrm.representation import Representation, RepresentationKind, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes import open_runtime
from polyrec.models.tiers.stage import fused_rows, open_tiers, tiered_rows
from polyrec.models.tiers.tier_settings import TierSettings
from tests.models.random_batches import random_batch


def spread(bundle: Bundle, directory: Path) -> TierSettings:
    """A tenth of every table on the device, a fifth in memory, the rest on disk."""
    cuts = {}
    for table, v in bundle.encoder.vocabularies.items():
        device, host = v.rows // 10, v.rows // 5
        cuts[table] = {"device": device, "host": host, "disk": v.rows - device - host}
    return TierSettings.model_validate({"cuts": cuts, "cache_bytes": 4096, "directory": directory})


@pytest.mark.parametrize("name", ["torch", "onnx"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_runtime_over_tiers_predicts_the_same_numbers(
    name: str, precision: Precision, bundle: Bundle, tmp_path: Path
) -> None:
    if precision != "fp32":
        model, representation = quantize_bundle(bundle, precision)
        bundle = write_bundle(tmp_path / "bundle", model, representation, bundle.encoder, {}, {})
    stack = open_tiers(bundle, spread(bundle, tmp_path / "tiers"))
    over, flat = open_runtime(name, bundle, tiers=stack), open_runtime(name, bundle)
    random = np.random.default_rng(0)
    table_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    for contexts in (None, 3):
        batch = random_batch(random, bundle.manifest.schema_, table_rows, 40, contexts)
        fused = fused_rows(over.stage)
        assert fused is not None
        stack.ahead.read(np.unique(stack.ahead.missing(fused.lookups(batch).rows()).pages))
        np.testing.assert_allclose(over.predict(batch), flat.predict(batch), rtol=0, atol=1e-6)
    rows = tiered_rows(over.stage)
    assert rows is not None
    figures = rows.stack.figures()
    assert min(level.lookups for level in (figures.levels["device"], figures.levels["cache"])) > 0
    assert figures.batches == 2 * 2  # a gather of single values and a bag, for each batch
    stack.close()


@pytest.mark.parametrize("name", ["torch", "onnx"])
@pytest.mark.parametrize(("kind", "precision"), [("table", "fp32"), ("table", "int8"), ("hybrid", "fp32")])
def test_nested_widths_read_whole_rows_of_one_stack(
    name: str, kind: RepresentationKind, precision: Precision, bundle: Bundle, tmp_path: Path
) -> None:
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    encoding = None if kind == "table" else Encoding(k=16, hidden=(8,))
    representation = Representation(kind=kind, encoding=encoding)
    stage = initial_stage(representation, schema, vocabularies, 16, 1, spread=0.5)
    net = initial_net(Architecture(widths=(4, 6, 16)), dense_slots(schema), stage.slots)
    nested = write_bundle(tmp_path / "b", DLRM(stage, net), representation, bundle.encoder, {}, {})
    if precision != "fp32":
        model, quantized = quantize_bundle(nested, precision)
        nested = write_bundle(tmp_path / "q", model, quantized, bundle.encoder, {}, {})
    stack = open_tiers(nested.at_width(4), spread(bundle, tmp_path / "tiers"))
    table_rows = {t: v.rows for t, v in vocabularies.items()}
    for contexts in (None, 3):
        batch = random_batch(np.random.default_rng(0), schema, table_rows, 40, contexts)
        for one in (nested, *nested.by_width()):
            over, flat = open_runtime(name, one, tiers=stack), open_runtime(name, one)
            np.testing.assert_allclose(over.predict(batch), flat.predict(batch), rtol=0, atol=1e-6)
    stack.close()


def test_lanes_share_one_stack(bundle: Bundle, tmp_path: Path) -> None:
    stack = open_tiers(bundle, spread(bundle, tmp_path))
    lanes = [open_runtime("torch", bundle, tiers=stack) for _ in range(2)]
    table_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    batch = random_batch(np.random.default_rng(1), bundle.manifest.schema_, table_rows, 20)
    first = lanes[0].embed(batch)
    lanes[1].embed(random_batch(np.random.default_rng(2), bundle.manifest.schema_, table_rows, 20))
    # each lane has buffers of its own: what one has embedded outlives the other's next batch
    np.testing.assert_allclose(
        lanes[0].dense(first), open_runtime("torch", bundle).predict(batch), rtol=0, atol=1e-6
    )
    stack.close()


def test_cuts_of_another_model_are_reported_by_table(bundle: Bundle, bundle_dir: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"table 'item' has \d+ rows, its tier cuts are"):
        open_tiers(load_bundle(bundle_dir), TierSettings.model_validate({"cuts": {"item": {"host": 1}}}))
    with pytest.raises(RuntimeUnavailable, match="'nothing', which the model does not have"):
        open_tiers(bundle, TierSettings.model_validate({"cuts": {"nothing": {"host": 1}}}))
