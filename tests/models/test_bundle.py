from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.bundle import EMBEDDINGS, MANIFEST, NET, VOCABULARY, Bundle, load_bundle, write_bundle
from models.errors import BundleError


@pytest.fixture
def copy(bundle_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_dir, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_bundle_written_and_loaded_is_the_same_model(bundle: Bundle, tmp_path: Path) -> None:
    model = bundle.model()
    again = write_bundle(tmp_path / "again", model, bundle.manifest.representation, bundle.encoder, {}, {})
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor, again.model().state_dict()[name])
    assert again.manifest.version == bundle.manifest.version
    assert again.encoder.standards == bundle.encoder.standards
    for table, vocabulary in bundle.encoder.vocabularies.items():
        other = again.encoder.vocabularies[table]
        np.testing.assert_array_equal(vocabulary.rank_of_id, other.rank_of_id)
        np.testing.assert_array_equal(vocabulary.counts, other.counts)
        assert vocabulary.values == other.values


def test_tables_are_in_popularity_order(bundle: Bundle) -> None:
    for vocabulary in bundle.encoder.vocabularies.values():
        assert (np.diff(vocabulary.counts) <= 0).all()


@pytest.mark.parametrize("name", [EMBEDDINGS, NET, VOCABULARY])
def test_a_flipped_bit_is_refused(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} is corrupt"):
        load_bundle(copy)


@pytest.mark.parametrize("name", [EMBEDDINGS, NET, VOCABULARY])
def test_a_cut_or_missing_file_is_refused(copy: Path, name: str) -> None:
    os.truncate(copy / name, 10)
    with pytest.raises(BundleError, match=f"{name} has 10 bytes, the manifest says"):
        load_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format_version=2), "format version 2"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("schema"), "schema"),
        (lambda m: m["architecture"].update(width=4), "contradicts itself"),
        (lambda m: m["vocabularies"].pop("item"), "contradicts itself"),
        (lambda m: m["files"].pop(NET), "does not list"),
        (lambda m: m["files"].update({"../x": m["files"][NET]}), "plain files"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    copy: Path, change: Callable[[dict[str, object]], object], reason: str
) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=reason):
        load_bundle(copy)


def test_no_bundle_and_no_json_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no manifest"):
        load_bundle(tmp_path / "nothing")
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle(tmp_path)


def test_an_existing_bundle_is_replaced_only_when_asked(bundle: Bundle, copy: Path) -> None:
    parts = (bundle.model(), bundle.manifest.representation, bundle.encoder, {}, {})
    with pytest.raises(BundleError, match="exists already"):
        write_bundle(copy, *parts)
    write_bundle(copy, *parts, replace=True)
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]
