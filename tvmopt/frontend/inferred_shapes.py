"""Infer the shapes of all values: by ONNX, and by ONNX Runtime for operators that ONNX lacks.

ONNX stops at an operator of another domain, such as QuickGelu of com.microsoft, and knows no shape
behind it. ONNX Runtime knows the operators that it adds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from tvmopt.frontend.library_errors import ONNX_ERRORS, onnxruntime_errors
from tvmopt.frontend.matmul_nbits import register_shape_inference
from tvmopt.frontend.ml_shapes import with_ml_shapes
from tvmopt.frontend.operator_sets import is_default

if TYPE_CHECKING:
    import onnxruntime as ort


def with_inferred_shapes(model: onnx.ModelProto, options: ort.SessionOptions) -> onnx.ModelProto:
    """Return ``model`` with the shapes that can be inferred; an operator may hide those behind it.

    Args:
        model: A model that ONNX Runtime loads.
        options: Options of its sessions.
    """
    register_shape_inference()
    # Nodes without shapes run in ONNX Runtime. An operator of ai.onnx.ml may lack an attribute.
    with contextlib.suppress(*ONNX_ERRORS):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        model = with_ml_shapes(model)
    if all(is_default(node) for node in model.graph.node):
        return model
    hidden = _values_without_shape(model.graph)
    if hidden:
        with contextlib.suppress(*onnxruntime_errors()):  # as above
            _add(model, _inferred(model, hidden, options))
    return model


def with_onnx_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the types that ONNX infers; as it is where ONNX refuses to infer."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except ONNX_ERRORS:  # the model may have its types already
        return model


def is_static(kind: onnx.TypeProto | None) -> bool:
    """Return whether a type is a tensor of a static shape."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)


def _values_without_shape(graph: onnx.GraphProto) -> list[str]:
    known = {value.name for value in (*graph.value_info, *graph.output) if is_static(value.type)}
    return [name for node in graph.node for name in node.output if name and name not in known]


def _inferred(
    model: onnx.ModelProto, names: Collection[str], options: ort.SessionOptions
) -> list[onnx.ValueInfoProto]:
    """Return the types of those values whose shape ONNX Runtime infers."""
    import onnxruntime as ort

    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    asked.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        asked.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [
        helper.make_tensor_value_info(output.name, _dtype(output.type), output.shape)
        for output in session.get_outputs()
        if output.type.startswith("tensor(")
        and all(isinstance(extent, int) for extent in output.shape)
    ]


def _dtype(name: str) -> int:
    """Return ONNX's number of a dtype that ONNX Runtime calls ``name``, such as tensor(float)."""
    return TensorProto.DataType.Value(name.removeprefix("tensor(").removesuffix(")").upper())


def _add(model: onnx.ModelProto, values: Collection[onnx.ValueInfoProto]) -> None:
    new = {value.name: value for value in values}
    for output in model.graph.output:
        if output.name in new:
            output.type.CopyFrom(new.pop(output.name).type)
    kept = [value for value in model.graph.value_info if value.name not in new]
    del model.graph.value_info[:]
    model.graph.value_info.extend([*kept, *new.values()])
