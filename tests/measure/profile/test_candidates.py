from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polyrec.measure.profile.candidates import Candidate, best_runtimes, candidates, path_memory
from polyrec.measure.profile.quality import PathQuality, bundle_quality, losing_precisions
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.bundle.manifest import NET
from polyrec.planner.devices import Device
from polyrec.planner.profile import ProfileError

CPU = Device(name="cpu", kind="cpu", lanes=2, memory_bytes=10**9, runtimes=("onnx", "torch"))
GPU = Device(name="cuda:0", kind="gpu", lanes=1, memory_bytes=10**9, runtimes=("torch",))


@pytest.fixture(scope="module")
def small(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """`bundle` with int8 rows: derived, so without figures of its own."""
    model, representation = quantize_bundle(bundle, "int8")
    folder = tmp_path_factory.mktemp("derived") / "table-int8"
    return write_bundle(folder, model, representation, bundle.encoder, {}, {})


def names(found: list[Candidate]) -> list[str]:
    return [c.name for c in found]


def every(bundles: dict[str, Bundle], **changes: object) -> list[Candidate]:
    asked = {"devices": (CPU, GPU), "runtimes": None, "precisions": None, "beside": Path(), "versions": "1"}
    return candidates(bundles, **(asked | changes))  # type: ignore[arg-type]


def test_a_cpu_is_measured_with_onnx_and_a_gpu_with_torch(bundle: Bundle) -> None:
    assert best_runtimes(CPU) == ("onnx",)
    assert best_runtimes(replace_runtimes(CPU, "torch")) == ("torch",)
    found = every({"table": bundle})
    assert names(found) == ["table@cpu", "table.int8@cpu", "table@cuda:0", "table.bf16@cuda:0"]
    assert [c.path.runtime for c in found] == ["onnx", "onnx", "torch", "torch"]


def replace_runtimes(device: Device, *runtimes: str) -> Device:
    return device.model_copy(update={"runtimes": runtimes})


def test_options_restrict_the_paths(bundle: Bundle) -> None:
    found = every({"table": bundle}, runtimes=["onnx", "torch"], precisions=["fp32"], devices=(CPU,))
    assert names(found) == ["table@cpu", "table.torch@cpu"]
    assert every({"table": bundle}, runtimes=["onnx"], devices=(GPU,)) == []


def test_two_bundles_of_one_representation_have_different_names(bundle: Bundle, small: Bundle) -> None:
    found = every({"new": bundle, "old": bundle, "small": small}, precisions=["fp32"], devices=(CPU,))
    assert names(found) == ["new@cpu", "old@cpu", "table-int8@cpu"]


def test_another_version_precision_or_software_is_another_identity(bundle: Bundle, small: Bundle) -> None:
    both = every({"a": bundle, "b": small})
    assert len({c.identity for c in both}) == len(both)
    assert every({"a": bundle}, versions="2")[0].identity != every({"a": bundle})[0].identity


def test_bundles_are_named_relative_to_the_profile(bundle: Bundle, tmp_path: Path) -> None:
    (absolute,) = every({"a": bundle}, precisions=["fp32"], devices=(CPU,))
    assert absolute.path.bundle == bundle.path
    there = replace(bundle, path=Path("runs/table"))
    (found,) = every({"a": there}, precisions=["fp32"], devices=(CPU,), beside=Path("runs"))
    assert found.path.bundle == Path("table")


def test_bytes_add_up_to_the_files(bundle: Bundle, small: Bundle) -> None:
    for one in (bundle, small):
        memory = path_memory(one, peak=7)
        # what the files have beyond the numbers is the header of each
        assert 0 <= one.bytes - (memory.total - 7) < 2048
        assert memory.tables.keys() == one.manifest.schema_.tables.keys()
    assert path_memory(small, 0).tables["item"] < path_memory(bundle, 0).tables["item"]


def test_quality_is_the_bundles_or_marked_as_assumed(bundle: Bundle, small: Bundle) -> None:
    bundles = {"table": bundle, "small": small}
    own, int8, derived, both = (bundle_quality(c, bundles) for c in every(bundles, devices=(CPU,)))
    test = bundle.manifest.metrics["test"]
    assert own.value == test["information"]
    assert (own.origin, own.note) == ("bundle", "")
    assert int8.origin == derived.origin == both.origin == "assumed"
    assert int8.note == "quality of int8 dense assumed equal to that of fp32"
    assert derived.note == "quality of 'table', which has the same dense net, assumed equal"
    assert both.value == own.value


def test_a_bundle_without_known_quality_is_rejected(small: Bundle) -> None:
    (alone,) = every({"small": small}, precisions=["fp32"], devices=(CPU,))
    with pytest.raises(ProfileError, match=r"has no test figure 'information'.*measure it with --data FILE"):
        bundle_quality(alone, {"small": small})


def test_a_given_quality_is_used_and_noted(small: Bundle) -> None:
    (alone,) = every({"small": small}, precisions=["fp32"], devices=(CPU,))
    found = bundle_quality(alone, {"small": small}, {"small": 0.75})
    assert (found.value, found.origin) == (0.75, "given")
    assert found.note == "quality of 'small' as given"


def test_the_derived_bundle_really_has_the_net_of_its_origin(bundle: Bundle, small: Bundle) -> None:
    assert load_bundle(small.path).manifest.files[NET].sha256 == bundle.manifest.files[NET].sha256


def test_nested_widths_are_paths_of_their_own(nested: Bundle, small: Bundle) -> None:
    found = every({"ladder": nested}, devices=(CPU,))
    assert names(found) == ["table.w4@cpu", "table.w4.int8@cpu", "table.w8@cpu", "table.w8.int8@cpu"]
    assert [c.path.width for c in found] == [c.bundle.width for c in found] == [4, 4, 8, 8]
    assert len({c.identity for c in found}) == len(found)
    assert names(every({"a": nested, "b": nested}, devices=(GPU,), precisions=["fp32"])) == [
        "a.w4@cuda:0", "a.w8@cuda:0", "b.w4@cuda:0", "b.w8@cuda:0",
    ]  # fmt: skip


def test_nested_widths_share_whole_rows_in_memory(nested: Bundle) -> None:
    narrow, wide = (path_memory(view, peak=0) for view in nested.by_width())
    assert narrow.tables == wide.tables == path_memory(nested, peak=0).tables
    assert narrow.fixed < wide.fixed


def test_each_width_has_its_own_figures(nested: Bundle, tmp_path: Path) -> None:
    model, representation = quantize_bundle(nested, "int8")
    derived = write_bundle(tmp_path / "int8", model, representation, nested.encoder, {}, {})
    both = {"table": nested, "int8": derived}
    for candidate in every(both, devices=(CPU,), precisions=["fp32"]):
        expected = nested.manifest.metrics[f"test.w{candidate.bundle.width}"]["information"]
        assert bundle_quality(candidate, both).value == expected
    given = {"table.w4": 0.5}
    narrow, wide = every({"table": nested}, devices=(CPU,), precisions=["fp32"])
    assert bundle_quality(narrow, both, given).value == 0.5
    assert bundle_quality(wide, both, given).origin == "bundle"


def test_a_precision_that_loses_auc_is_left_out(bundle: Bundle, nested: Bundle) -> None:
    found = every({"table": bundle, "ladder": nested}, devices=(CPU,))
    auc = (0.8, 0.79985, 0.7, 0.6998, 0.8, 0.81)  # fp32 and int8 of the table, and of two widths
    measured = {c.name: PathQuality(0.2, {"auc": a}, "data", c.name) for c, a in zip(found, auc, strict=True)}
    losing = losing_precisions(found, measured)
    assert list(losing) == [found[3].name]
    assert "loses 0.029% of the AUC" in losing[found[3].name]
    assumed = {name: replace(quality, origin="assumed") for name, quality in measured.items()}
    assert losing_precisions(found, assumed) == {}
