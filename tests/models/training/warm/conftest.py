"""Bundles to continue, and data that come after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import KINDS
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile, Select

SMALL = RecipeFile(
    architecture=Architecture(width=8, bottom=(16,), top=(16,), interaction="dot"),
    recipe=Recipe(epochs=1, batch_rows=256, average=0.9, checks_per_epoch=2),
    encoding=Encoding(k=32, m=1000, hidden=(16,), batch_norm=True, by_rows=True),
    select=Select(largest=2),
)


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows like `clicks`, with users and items that those have not, and without some that they have."""
    return generate(
        tmp_path_factory.mktemp("later") / "later.parquet", 4000, seed=8, items=450, users=320
    ).path


@pytest.fixture(scope="session")
def family(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A bundle of each representation, of a select that stores parts of tables, and of nested widths."""
    schema, folder = load_schema("trivago"), tmp_path_factory.mktemp("family")
    found = {}
    for name in (*KINDS, "parts", "nested"):
        training = SMALL
        if name == "parts":
            training = SMALL.model_copy(update={"select": Select(share=0.3)})
        if name == "nested":
            training = SMALL.with_widths((4, 8))
        kind = {"parts": "select", "nested": "table"}.get(name, name)
        learner = Learner(open_data(clicks, schema), schema, training, kind, baselines=False)
        found[name] = learner.learn(folder / name)
    return found
