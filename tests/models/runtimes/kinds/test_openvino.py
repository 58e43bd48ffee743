from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.registry import why_unusable

openvino = pytest.importorskip("polyrec.models.runtimes.kinds.openvino", exc_type=ImportError)


@given(st.integers(1, 5000))
def test_padding_adds_at_most_an_eighth(rows: int) -> None:
    size = openvino.padded_size(rows)
    assert rows <= size <= rows * 1.125
    assert openvino.padded_size(size) == size


def test_there_are_few_sizes() -> None:
    sizes = openvino.sizes_up_to(1024)
    assert sizes[:17] == [*range(1, 17), 18]
    assert len(sizes) == 16 + 8 * 6


def test_padding_rows_have_zeros_and_the_first_context() -> None:
    inputs = Inputs(
        torch.ones(17, 2),
        torch.ones(19, 1),
        torch.ones(17, 3, 4),
        torch.ones(19, 2, 4),
        torch.arange(19) % 17,
    )
    padded = openvino.padded(inputs)
    assert [len(part) for part in padded] == [18, 20, 18, 20, 20]
    for part, full in zip(inputs, padded, strict=True):
        assert torch.equal(full[: len(part)], part)
        assert not full[len(part) :].any()


def test_bf16_is_offered_only_where_the_processor_has_it(bundle: Bundle) -> None:
    able = "BF16" in openvino.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert ("bf16" in openvino.precisions("cpu")) == able
    if not able:
        with pytest.raises(RuntimeUnavailable, match="'cpu' has no dense precision 'bf16'; known: fp32"):
            openvino.OpenVinoRuntime(bundle, precision="bf16")


@pytest.mark.parametrize("device", ["cpu:1", "gpu:x", "abacus", "npu:7"])
def test_devices_that_it_does_not_find_are_errors(bundle: Bundle, device: str) -> None:
    assert "openvino" in (why_unusable("openvino", device) or "")
    with pytest.raises(RuntimeUnavailable, match="openvino"):
        openvino.OpenVinoRuntime(bundle, device)


def test_rows_with_infinite_inputs_have_no_probability() -> None:
    dense = torch.tensor([[0.0], [float("inf")], [1.0]])
    inputs = Inputs(
        torch.zeros(2, 0), dense, torch.zeros(2, 1, 4), torch.zeros(3, 1, 4), torch.tensor([0, 1, 1])
    )
    got = openvino._without_infinite(np.zeros(3, np.float32), inputs)
    assert np.isnan(got).tolist() == [False, True, False]
