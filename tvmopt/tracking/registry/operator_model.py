"""An ONNX model of one node, which ONNX Runtime runs by a native library beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tvmopt.runtime import ModelMetadata, TensorSpec
from tvmopt.runtime.sizes import Shapes

#: The ONNX file, beside the library.
OPERATOR_FILE = "model.onnx"
_DOMAIN, _OPERATOR = "tvmopt", "CompiledModel"


def write_operator_model(bundle: Path, metadata: ModelMetadata) -> None:
    """Write ``model.onnx``, whose node the library of the bundle computes.

    Args:
        bundle: Folder with the library.
        metadata: Its metadata.
    """
    names = [[tensor.name for tensor in side] for side in (metadata.inputs, metadata.outputs)]
    node = helper.make_node(_OPERATOR, names[0], names[1], domain=_DOMAIN)
    inputs = _values(metadata.inputs, [size.inputs for size in metadata.sizes])
    outputs = _values(metadata.outputs, [size.outputs for size in metadata.sizes])
    graph = helper.make_graph([node], metadata.name, inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="tvmopt")
    onnx.save_model(model, str(bundle / OPERATOR_FILE))


def _values(tensors: Sequence[TensorSpec], sizes: Sequence[Shapes]) -> list[onnx.ValueInfoProto]:
    """Return the tensors; an extent that differs between the sizes is left open."""
    found = []
    for number, tensor in enumerate(tensors):
        extents = zip(tensor.shape, *(size[number] for size in sizes), strict=True)
        shape = [first if {first} == {first, *others} else None for first, *others in extents]
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        found.append(helper.make_tensor_value_info(tensor.name, dtype, shape))
    return found
