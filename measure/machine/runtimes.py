"""Tests whether a runtime works on a device, by executing a product there."""

from __future__ import annotations

from functools import cache

import numpy as np

from polyrec.models.errors import RuntimeUnavailable


def onnx_works(device: str) -> str | None:
    """Returns why ONNX Runtime does not work on this device (`cpu`, `cuda:0`, `tensorrt:0`), or None."""
    try:
        from polyrec.models.runtimes.onnx import open_session

        session = open_session(product_graph(), device)
        one = np.ones((2, 2), np.float32)
        product = session.run(None, {"a": one, "b": one})[0]
    except ImportError as e:
        return f"onnxruntime is not installed: {e}"
    except RuntimeUnavailable as e:
        return str(e)
    except Exception as e:  # onnxruntime raises its own pybind classes
        return f"onnx fails on device '{device}': {_first(e)}"
    return None if np.array_equal(product, np.full((2, 2), 2.0)) else "its product of two matrices is wrong"


def torch_works(device: str) -> str | None:
    """Returns why torch does not work on this device, or None."""
    import torch

    try:
        one = torch.ones((2, 2), device=device)
        right = bool(torch.equal((one @ one).cpu(), torch.full((2, 2), 2.0)))
    except (RuntimeError, AssertionError) as e:
        return f"torch has no device '{device}': {_first(e)}"
    return None if right else "its product of two matrices is wrong"


@cache
def product_graph() -> bytes:
    """Builds an ONNX graph of `c` = `a` times `b`, float32 of any size."""
    from onnx import TensorProto, helper

    a, b, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, None]) for n in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a, b], [c])
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return model


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
