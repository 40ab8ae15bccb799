"""Find out whether the last axis of a model's first output is one of classes.

Two models then agree on a row when their largest scores are of the same class. The axis is one of
classes if a softmax, a sigmoid, or a linear layer computes it last: not for the boxes of a
detector, which are concatenated, nor for hidden states, which are normalised.
"""

from __future__ import annotations

import onnx

from tvmopt.frontend.shapes import declared_dims

#: Operators whose last axis is one of classes.
_SCORES = frozenset({"Sigmoid", "HardSigmoid", "Gemm", "MatMul", "MatMulNBits"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
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


def holds_class_scores(model: onnx.ModelProto) -> bool:
    """Return whether the first output holds scores of classes on its last axis.

    Args:
        model: A prepared model, without functions.
    """
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output if name}
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    name = graph.output[0].name
    for _ in range(len(graph.node)):
        node = producers.get(name)
        if node is None or name != node.output[0]:
            return False
        if node.op_type in _SCORES:
            return True
        if node.op_type == "Conv":  # its second axis, which is the last where others are gone
            return _rank(graph, graph.output[0].name) == 2
        if node.op_type in _SOFTMAX:
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            return axis in (None, -1, _rank(graph, name) - 1)
        inputs = [one for one in node.input if one]
        if node.op_type in _KEEP_WITH_CONSTANT:
            inputs = [one for one in inputs if one not in constants]
            if len(inputs) > 1:
                return False
        elif node.op_type not in _KEEP:
            return False
        if not inputs:
            return False
        name = inputs[0]
    return False


def _rank(graph: onnx.GraphProto, name: str) -> int:
    """Return the number of axes of a value; -1 where it is not known."""
    for value in (*graph.output, *graph.value_info):
        if value.name == name and (dims := declared_dims(value)) is not None:
            return len(dims)
    return -1
