"""Tests of the comparison of ranking requests whose context is computed once with exploded rows."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.context_once import FORMS, compared, requests
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.runtimes import open_runtime


def test_all_forms_are_timed_and_agree(bundle: Bundle, clicks: Path) -> None:
    schema = bundle.manifest.schema_
    reader = open_data(clicks, schema)
    data = encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,))
    found = compared(open_runtime("torch", bundle), requests(data, 9, count=10, seed=1), rounds=2)
    assert all(found[form] > 0 for form in FORMS)
    assert found["largest_difference"] < 1e-5
