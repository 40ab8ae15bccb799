"""Find the operator that computes an output, behind operators that keep the order of scores."""

from __future__ import annotations

import onnx

from tvmopt.frontend.shapes import declared_dims

#: Operators whose result may be scores, values or features.
LINEAR = frozenset({"Gemm", "MatMul", "MatMulNBits"})
#: Operators that compute a separate score for each class.
SIGMOID = frozenset({"Sigmoid", "HardSigmoid"})
#: Operators that compute scores of classes which exclude each other.
SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
#: Operators that keep the order of the scores of a row. Reshapes are followed: what counts is the
#: last axis, and classifiers drop axes of one element only.
_KEEP = frozenset(
    {
        "Identity", "Cast", "Dropout", "Squeeze", "Unsqueeze", "Flatten", "Reshape", "Clip",
        "GlobalAveragePool", "ReduceMean", "QuantizeLinear", "DequantizeLinear",
    }
)  # fmt: skip
#: The same, if all operands but one are constants: a bias, or a temperature.
_KEEP_WITH_CONSTANT = frozenset({"Add", "Sub", "Mul", "Div"})


def last_operator(graph: onnx.GraphProto, name: str) -> str | None:
    """Return the type of the last operator of ``name`` that may compute scores; None without.

    Operators behind it keep the order of the scores.
    """
    output = name
    producers = {name: node for node in graph.node for name in node.output if name}
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    for _ in range(len(graph.node)):
        node = producers.get(name)
        if node is None or name != node.output[0]:
            return None
        kind = node.op_type
        if kind in LINEAR or kind in SIGMOID:
            return kind
        if kind == "Conv":  # its second axis, which is the last where others are gone
            dims = dims_of(graph, output)
            return kind if dims is not None and len(dims) == 2 else None
        if kind in SOFTMAX:
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            dims = dims_of(graph, name)
            return kind if axis in (None, -1) or (dims and axis == len(dims) - 1) else None
        inputs = [one for one in node.input if one]
        if kind in _KEEP_WITH_CONSTANT:
            inputs = [one for one in inputs if one not in constants]
            if len(inputs) > 1:
                return None
        elif kind not in _KEEP:
            return None
        if not inputs:
            return None
        name = inputs[0]
    return None


def dims_of(graph: onnx.GraphProto, name: str) -> list[int | str] | None:
    """Return the dimensions of a value; None where they are not known."""
    for value in (*graph.output, *graph.value_info):
        if value.name == name and (dims := declared_dims(value)) is not None:
            return list(dims)
    return None
