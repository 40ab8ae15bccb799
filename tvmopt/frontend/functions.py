"""Inline functions of the model, and operators that TVM's importer lacks but ONNX defines.

before -> after: a node of a model-local function, or of an operator such as Celu whose schema has a
body -> the nodes of the body, with shapes known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from onnx import inliner

from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend.external import graphs
from tvmopt.frontend.library_errors import ONNX_ERRORS
from tvmopt.frontend.operator_sets import is_default

# TVM's converters of these know only a part of the operator; the body is all of it.
_PARTLY_KNOWN = ("Attention", "RMSNormalization")


def inline_functions(model: onnx.ModelProto, known: Collection[str]) -> onnx.ModelProto:
    """Return the model without functions; ``model`` itself does not change.

    Args:
        model: A model with static input shapes.
        known: Operators that the importer converts.

    Raises:
        ModelError: When a function cannot be inlined, for example because it calls itself.
    """
    found = {
        node.op_type
        for graph in graphs(model.graph)
        for node in graph.node
        if is_default(node) and _needs_body(node.op_type, known)
    }
    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        if found:
            ids = [("", name) for name in sorted(found)]
            typed = _with_types(model)
            _write_defaults(typed, found)
            model = inliner.inline_selected_functions(typed, ids, inline_schema_functions=True)
            del model.graph.value_info[:]
    except ONNX_ERRORS as error:
        raise ModelError(
            f"functions of the model must be inlined, but ONNX says: {in_one_line(error)}"
            "; export the model without functions"
        ) from error
    return model


def _write_defaults(model: onnx.ModelProto, operators: Collection[str]) -> None:
    """Write the default attributes of ``operators`` into their nodes; the inliner loses them."""
    for graph in graphs(model.graph):
        for node in graph.node:
            if node.op_type not in operators or not is_default(node):
                continue
            given = {attribute.name for attribute in node.attribute}
            for name, attribute in onnx.defs.get_schema(node.op_type).attributes.items():
                default = attribute.default_value
                if name not in given and default.type != onnx.AttributeProto.UNDEFINED:
                    node.attribute.append(default)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the type of every value, which bodies of operators depend on."""
    typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {value.name for value in (*typed.graph.input, *typed.graph.value_info)}
    # The inliner looks neither at these, nor does it know that "" stands for no input.
    untyped = {
        tensor.name: tensor for tensor in typed.graph.initializer if tensor.name not in known
    }
    for name, tensor in {**untyped, "": onnx.TensorProto(data_type=1)}.items():
        value = onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        typed.graph.value_info.append(value)
    return typed


def _needs_body(op_type: str, known: Collection[str]) -> bool:
    if (op_type in known and op_type not in _PARTLY_KNOWN) or not onnx.defs.has(op_type):
        return False
    schema: Any = onnx.defs.get_schema(op_type)  # its type hints lack both properties
    return bool(schema.has_function or schema.has_context_dependent_function)
