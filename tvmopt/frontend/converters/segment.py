"""Converter of a segment that ONNX Runtime runs: a call of a packed function of the runtime.

The segment's model is the first argument, a constant of bytes. So it lies in the library, and is
loaded, hashed and copied with it.
"""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs
from tvmopt.frontend.inferred_shapes import is_static
from tvmopt.frontend.partition import MODEL_ATTRIBUTE
from tvmopt.runtime.segments import ALLOCATING_FUNCTION, FUNCTION


def segment(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the outputs of the segment."""
    content = attributes[MODEL_ATTRIBUTE]
    content = content.encode("latin-1") if isinstance(content, str) else content
    model = onnx.load_model_from_string(content)
    types = [_type(value.type) for value in model.graph.output]
    data = relax.const(np.frombuffer(content, "uint8"))
    if all(is_static(value.type) for value in model.graph.output):
        call = relax.op.call_dps_packed(FUNCTION, relax.Tuple([data, *inputs]), types)
    else:
        result = types[0] if len(types) == 1 else relax.TupleType(types)
        call = relax.op.call_pure_packed(ALLOCATING_FUNCTION, data, *inputs, ty_args=result)
    made = builder.emit(call)
    if len(types) == 1:
        return made
    return relax.Tuple([builder.emit(relax.TupleGetItem(made, n)) for n in range(len(types))])


def _type(kind: onnx.TypeProto) -> relax.TensorType:
    """Return the Relax type of an output."""
    tensor = kind.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if is_static(kind):
        return relax.TensorType([dim.dim_value for dim in tensor.shape.dim], dtype)
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else -1
    return relax.TensorType(dtype=dtype, ndim=rank)
