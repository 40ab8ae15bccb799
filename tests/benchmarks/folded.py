"""Build small ONNX models in the form the frontend leaves: folded, with inferred shapes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def graph(nodes, inputs, outputs, weights=()):
    """Return a model with initializers and inferred shapes, as the frontend leaves it."""
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in specs.items()]
        for specs in (inputs, dict.fromkeys(outputs))
    ]
    constants = [
        onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in dict(weights).items()
    ]
    made = helper.make_graph(nodes, "g", *values, constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)
