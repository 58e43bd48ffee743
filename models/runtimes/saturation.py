"""Detects whether this machine's int8 products saturate.

x86 processors with AVX2 or AVX-512 but without VNNI add pairs of uint8 x int8 products in 16 bits, which the
sum of two large products exceeds: 255 * 127 * 2 > 32,767. ONNX Runtime documents this and leaves it to the
model's author (https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html, "U8S8"). Its
kernels for uint8 x uint8 add in 32 bits everywhere; without VNNI they take 1.25 times as long.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

ROWS, TERMS, COLUMNS = 4, 64, 16


@lru_cache(maxsize=1)
def saturates() -> bool:
    """Multiplies the largest uint8 and int8 numbers; returns True if their sum is wrong."""
    weight = numpy_helper.from_array(np.full((TERMS, COLUMNS), 127, np.int8), "weight")
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [ROWS, TERMS])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [ROWS, COLUMNS])
    node = helper.make_node("MatMulInteger", ["x", "weight"], ["y"])
    graph = helper.make_graph([node], "saturation", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"x": np.full((ROWS, TERMS), 255, np.uint8)})
    return bool((sums != 255 * 127 * TERMS).any())
