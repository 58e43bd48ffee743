from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from polyrec.models.bundle.bundle import Bundle, load_bundle, require_target, write_bundle
from polyrec.models.bundle.manifest import EMBEDDINGS, MANIFEST, NET, VOCABULARY, checksum
from polyrec.models.errors import BundleError


@pytest.fixture
def copy(bundle_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle_dir, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another manifest, with the checksum of its own."""
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest | {"sha256": checksum(manifest)}))


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
def test_a_flipped_bit_is_rejected(copy: Path, name: str) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} is corrupt"):
        load_bundle(copy)


@pytest.mark.parametrize("name", [EMBEDDINGS, NET, VOCABULARY])
def test_a_cut_or_missing_file_is_rejected(copy: Path, name: str) -> None:
    os.truncate(copy / name, 10)
    with pytest.raises(BundleError, match=f"{name} has 10 bytes, the manifest says"):
        load_bundle(copy)
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format_version=4), "format version 4, this Polyrec reads 1, 2, 3"),
        (lambda m: m.update(name="a\nWARNING all is lost"), r"name has a control character: 'a\\nWARN"),
        (lambda m: m["schema"]["label"].update(column="\x1b[2J"), "schema.label.column has a control"),
        (lambda m: m["metrics"].update({"a\u2028b": {}}), "metrics.key has a control character"),
        (lambda m: m.update(version="x" * 1001), "version has more than 1000 characters"),
        (lambda m: m["standards"]["price"].update(deviation=1e-320), "standards.price: deviation"),
        (lambda m: m["standards"]["price"].update(mean=1e30), r"standards.price: mean 1e\+30 is over"),
        (lambda m: m["files"][NET].update(sha256="x"), f"files.{NET}.sha256"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("schema"), "schema"),
        (lambda m: m["architecture"].update(width=4), "contradicts itself"),
        (lambda m: m["vocabularies"].pop("item"), "contradicts itself"),
        (lambda m: m["standards"]["price"].update(deviation=0), "standards.price.deviation"),
        (lambda m: m["standards"]["price"].update(mean=float("nan")), "standards.price.mean"),
        (lambda m: m["metrics"].update(test={"accuracy": float("nan")}), "metrics.test.accuracy"),
        (lambda m: m["files"].pop(NET), "lists other files than"),
        (lambda m: m["files"].update({"../x": m["files"][NET]}), "lists other files than"),
    ],
)
def test_a_manifest_that_does_not_fit_is_rejected(
    copy: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=reason):
        load_bundle(copy)


def test_an_edited_manifest_is_rejected_by_its_checksum(copy: Path) -> None:
    text = (copy / MANIFEST).read_text()
    (copy / MANIFEST).write_text(text.replace('"name": "trivago"', '"name": "trivag"'))
    with pytest.raises(BundleError, match=r"manifest.json is corrupt or was edited"):
        load_bundle(copy)
    (copy / MANIFEST).write_text(json.dumps(json.loads(text)))  # another form of the same
    assert load_bundle(copy).name == "table"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(name="a\nb"), "control character"),
        (lambda m: m["standards"]["price"].update(deviation=1e-320), "deviation"),
        (lambda m: None, None),
    ],
)
def test_a_manifest_of_the_format_without_a_checksum_is_checked_otherwise(
    copy: Path, change: Callable[[dict[str, Any]], object], reason: str | None
) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["format_version"] = 1
    change(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    if reason is None:
        assert load_bundle(copy).manifest.sha256 is None
    else:
        with pytest.raises(BundleError, match=reason):
            load_bundle(copy)


def test_a_bundle_of_version_2_is_read_and_has_no_ranges_of_activations(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    assert manifest.pop("activations")["rows"] > 0
    manifest["format_version"] = 2
    (copy / MANIFEST).write_text(json.dumps(manifest | {"sha256": checksum(manifest)}))
    assert load_bundle(copy).activations == {}


def test_a_loaded_bundle_is_unchanged_when_its_folder_is_replaced(copy: Path) -> None:
    before = load_bundle(copy)
    expected = {n: t.clone() for n, t in before.model().state_dict().items()}
    other = deepcopy(before.model())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    parts = (before.manifest.representation, before.encoder, {}, {})
    after = write_bundle(copy, other, *parts, replace=True)
    assert after.manifest.version != before.manifest.version
    for name, tensor in before.model().state_dict().items():
        np.testing.assert_array_equal(tensor, expected[name])
    held = list(before.files.descriptors.values())
    del before
    gc.collect()
    for descriptor in held:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)


def test_a_missing_bundle_and_invalid_json_have_different_errors(copy: Path, tmp_path: Path) -> None:
    for nothing, why in (("nothing", "there is no manifest"), ("/dev/zero", "it is a file; a plan's")):
        with pytest.raises(BundleError, match=f"no bundle at .*: {why}"):
            load_bundle(tmp_path / nothing)
    for text in ("{", "[" * 100_000):
        (copy / MANIFEST).write_text(text)
        with pytest.raises(BundleError, match=f"{MANIFEST} cannot be read"):
            load_bundle(copy)


@pytest.mark.parametrize("name", [MANIFEST, EMBEDDINGS, NET, VOCABULARY])
def test_a_pipe_or_a_device_instead_of_a_file_is_not_read(copy: Path, name: str) -> None:
    for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        (copy / name).unlink()
        make(copy / name)
        with pytest.raises(BundleError, match=f"{name}.*it is not a regular file"):
            load_bundle(copy)


def test_a_manifest_is_read_up_to_a_bound(copy: Path) -> None:
    os.truncate(copy / MANIFEST, 2**40)
    with pytest.raises(BundleError, match=f"{MANIFEST} cannot be read: it has more than 4194304 bytes"):
        load_bundle(copy)


def rewrite(folder: Path, name: str, change: Callable[[dict[str, NDArray[Any]]], object]) -> None:
    """Other numbers, and a manifest that says so."""
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    edit(folder, lambda m: m["files"][name].update(sha256=digest, bytes=(folder / name).stat().st_size))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [EMBEDDINGS, NET])
def test_a_number_that_is_not_finite_is_rejected(copy: Path, name: str, value: float) -> None:
    def spoil(tensors: dict[str, NDArray[Any]]) -> None:
        next(t for t in tensors.values() if t.dtype == np.float32).reshape(-1)[-1] = value

    rewrite(copy, name, spoil)
    with pytest.raises(BundleError, match="not finite"):
        load_bundle(copy)


def test_numbers_that_overflow_are_rejected_although_each_is_finite(copy: Path) -> None:
    def grow(tensors: dict[str, NDArray[Any]]) -> None:
        tensors["output.weight"].fill(3e38)
        tensors["output.bias"].fill(3e38)

    rewrite(copy, NET, grow)
    with pytest.raises(BundleError) as error:
        load_bundle(copy)
    assert str(error.value) == (
        f"bundle '{copy}': its numbers overflow: a row of missing values has no finite answer; "
        f"the largest are in 'output.bias' in {NET}, up to 3e+38"
    )


def test_one_overflowing_out_of_vocabulary_row_is_found(bundle: Bundle, copy: Path) -> None:
    vocabularies, before = bundle.encoder.vocabularies, 0
    for table, vocabulary in vocabularies.items():
        if table == "item":
            break
        before += vocabulary.rows
    row = before + vocabularies["item"].oov_rank
    rewrite(copy, EMBEDDINGS, lambda tensors: tensors["store.weight"][row].fill(3e38))
    with pytest.raises(BundleError, match=r"a row of unknown values has no .* in 'store.weight'"):
        load_bundle(copy)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (("architecture", "top"), [2**16, 2**16, 2**16]),
        (("architecture", "bottom"), [10**30]),
        (("architecture", "cross_layers"), 10**9),
        (("architecture", "width"), 4096),
    ],
)
def test_a_manifest_that_promises_a_huge_net_takes_no_memory(
    copy: Path, part: tuple[str, str], value: Any
) -> None:
    edit(copy, lambda m: m[part[0]].update({part[1]: value}))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30, hard))
    try:
        with pytest.raises(BundleError, match=r"architecture|contradicts itself"):
            load_bundle(copy)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_an_existing_bundle_is_replaced_only_with_replace(bundle: Bundle, copy: Path) -> None:
    parts = (bundle.model(), bundle.manifest.representation, bundle.encoder, {}, {})
    with pytest.raises(BundleError, match="exists already"):
        write_bundle(copy, *parts)
    write_bundle(copy, *parts, replace=True)
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]


def test_a_model_that_is_not_finite_replaces_nothing(bundle: Bundle, copy: Path) -> None:
    model, before = bundle.model(), sorted(copy.iterdir())
    next(model.net.parameters()).data = next(model.net.parameters()).data * np.nan
    with pytest.raises(BundleError, match="is not written: 'net"):
        write_bundle(copy, model, bundle.manifest.representation, bundle.encoder, {}, {}, replace=True)
    assert sorted(copy.iterdir()) == before
    assert load_bundle(copy).manifest == bundle.manifest


def test_a_model_that_overflows_replaces_nothing(bundle: Bundle, copy: Path) -> None:
    model = bundle.model()
    model.net.output.weight.data.fill_(3e38)
    model.net.output.bias.data.fill_(3e38)
    with pytest.raises(BundleError, match="is not written: its numbers overflow: a row of missing values"):
        write_bundle(copy, model, bundle.manifest.representation, bundle.encoder, {}, {}, replace=True)
    assert load_bundle(copy).manifest == bundle.manifest


def test_a_metric_that_is_not_defined_is_none(bundle: Bundle, tmp_path: Path) -> None:
    parts = (bundle.model(), bundle.manifest.representation, bundle.encoder)
    again = write_bundle(tmp_path / "again", *parts, {"validation": {"auc": float("nan"), "step": 3}}, {})
    assert again.manifest.metrics == {"validation": {"auc": None, "step": 3}}


def test_replacing_never_deletes_other_files(bundle: Bundle, copy: Path, tmp_path: Path) -> None:
    parts = (bundle.model(), bundle.manifest.representation, bundle.encoder, {}, {})
    (copy / "notes.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(copy)
    for target in (copy, tmp_path / "file", tmp_path / "link", tmp_path):
        with pytest.raises(BundleError, match="will not be replaced"):
            write_bundle(target, *parts, replace=True)
    assert (copy / "notes.txt").read_text() == (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("target", ["/proc/bundle", "/dev/null/bundle", "x" * 300])
def test_an_unwritable_target_is_reported_before_the_work(target: str) -> None:
    with pytest.raises(BundleError, match="cannot write bundle"):
        require_target(target, replace=False)


def test_a_full_disk_is_reported_and_leaves_no_files(bundle: Bundle, tmp_path: Path) -> None:
    parts = (bundle.model(), bundle.manifest.representation, bundle.encoder, {}, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(BundleError, match="cannot write bundle"):
            write_bundle(tmp_path / "bundle", *parts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
