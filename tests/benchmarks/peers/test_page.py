"""The page of the comparison with other servers."""

from __future__ import annotations

import json

from benchmarks.command import ROOT
from benchmarks.peers.page import page

RESULTS = ROOT / "docs" / "results"


def test_a_further_machine_has_a_section_named_by_its_vector_extensions() -> None:
    stored = json.loads((RESULTS / "peers.json").read_text())
    found = stored["kaggle/rows/23"]
    found["machine"] |= {"processor": "Some Processor", "vectors": "amx_int8, avx2"}
    alone, both = page([stored]), page([stored, {"kaggle/rows/23": found}])
    added = both[both.index("## On Some Processor with amx_int8, avx2\n") :]
    assert added.splitlines()[2].startswith("### kaggle, 23 rows")
    assert both.startswith(alone[: alone.index("## What limits")])
