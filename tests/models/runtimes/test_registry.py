from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.registry import (
    RuntimeName,
    runtime_kind,
    runtime_names,
    runtimes_for,
    why_unusable,
)

ROOT = Path(__file__).parents[3]
ELSEWHERE = """
from polyrec.models.runtimes.kinds.torch import TorchRuntime, precisions, probe
from polyrec.models.runtimes.runtime import RuntimeKind
KIND = RuntimeKind(TorchRuntime, ("cpu",), precisions, probe, "torch")
"""
METADATA = "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n"
POINTS = "[polyrec.runtimes]\nelsewhere = elsewhere:KIND\nmissing = elsewhere.nowhere:KIND\n"
USE = """
from polyrec.models.runtimes.registry import runtime_kind, runtime_names, runtimes_for, why_unusable
assert {"elsewhere", "missing", "torch"} <= set(runtime_names())
assert "elsewhere" in runtimes_for("cpu")
assert "missing" not in runtimes_for("cpu")
assert why_unusable("elsewhere", "cpu") is None
assert "is not installed" in why_unusable("missing", "cpu")
"""


def test_every_runtime_of_this_folder_is_registered() -> None:
    assert runtime_names() == ("onnx", "openvino", "torch")


def test_names_are_listed_without_importing_a_library() -> None:
    script = "import polyrec.models.runtimes.registry as r, sys; r.runtime_names(); print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {"torch", "onnxruntime", "onnx", "openvino"} & set(said.stdout.split()) == set()


@pytest.mark.long
def test_another_distribution_adds_a_runtime_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    folder = tmp_path / "elsewhere-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    (folder / "entry_points.txt").write_text(POINTS)
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=600)


def test_devices_are_offered_to_the_runtimes_that_know_them() -> None:
    assert {"onnx", "torch"} <= set(runtimes_for("cpu"))
    assert runtimes_for("cuda:0") == ("onnx", "torch")
    assert runtimes_for("tensorrt:0") == ("onnx",)
    assert runtimes_for("abacus") == ()


@pytest.mark.parametrize("name", ["onnx", "torch"])
def test_a_runtime_that_cannot_execute_says_why(name: str) -> None:
    assert why_unusable(name, "cpu") is None
    assert f"{name} has no device 'abacus'" in (why_unusable(name, "abacus") or "")


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(RuntimeUnavailable, match="no runtime 'tea'; known: onnx, openvino, torch"):
        runtime_kind("tea")
    with pytest.raises(ValidationError, match="no runtime 'tea'"):
        TypeAdapter(RuntimeName).validate_python("tea")
    assert TypeAdapter(RuntimeName).validate_python("onnx") == "onnx"
