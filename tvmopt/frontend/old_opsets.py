"""Models of opset 1 to 6 become opset 7, the first one that ONNX Runtime implements.

before -> after: operators that broadcast by an attribute -> by NumPy's rules; the slope of a PRelu
of shape (C,) -> (C, 1, 1), which broadcasts along the channels by these rules.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, version_converter

from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend.library_errors import ONNX_ERRORS
from tvmopt.frontend.operator_sets import is_default, opset

_FIRST = 7


def at_least_opset_7(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, or a copy with opset 7 where its opset is older.

    Args:
        model: A model whose tensors are inside.

    Raises:
        ModelError: When ONNX cannot convert it.
    """
    if opset(model) >= _FIRST or not any(is_default(node) for node in model.graph.node):
        return model
    try:
        onnx.checker.check_model(model)
        newer = version_converter.convert_version(model, _FIRST)
    except ONNX_ERRORS as error:
        raise ModelError(
            f"models must be of opset {_FIRST} or later, or be valid and convertible, but this one "
            f"has opset {opset(model)}, and ONNX says: {in_one_line(error)}; export it anew"
        ) from error
    _reshape_slopes(newer)
    return newer


def _reshape_slopes(model: onnx.ModelProto) -> None:
    typed = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*typed.input, *typed.value_info)
    }
    slopes = {
        node.input[1]: ranks.get(node.input[0], 0)
        for node in model.graph.node
        if node.op_type == "PRelu" and len(node.input) == 2
    }
    for tensor in model.graph.initializer:
        trailing = slopes.get(tensor.name, 0) - 2
        if trailing > 0 and len(tensor.dims) == 1 and tensor.dims[0] > 1:
            array = numpy_helper.to_array(tensor)
            shaped = np.reshape(array, (-1, *[1] * trailing))
            tensor.CopyFrom(numpy_helper.from_array(shaped, tensor.name))
    for value in model.graph.input:  # an old model declares its weights as inputs, too
        shape = value.type.tensor_type.shape
        trailing = slopes.get(value.name, 0) - 2
        if trailing > 0 and len(shape.dim) == 1 and shape.dim[0].dim_value > 1:
            for _ in range(trailing):
                shape.dim.add(dim_value=1)
