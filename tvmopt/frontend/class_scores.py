"""Find out whether the last axis of a model's first output is one of classes.

Two models then agree on a row when their largest scores are of the same class. The axis is one of
classes if a softmax, a sigmoid, or a linear layer computes it last: not for the boxes of a
detector, which are concatenated, nor for hidden states, which are normalised. A linear layer
computes values and embeddings, too: the name of the output may tell, else the data does.
"""

from __future__ import annotations

import dataclasses
import re

import onnx

from tvmopt.frontend.shapes import declared_dims

_LINEAR = frozenset({"Gemm", "MatMul", "MatMulNBits"})
_SIGMOID = frozenset({"Sigmoid", "HardSigmoid"})
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
#: Words in names of outputs that hold values or features, as exporters and model zoos use them.
_VALUES = re.compile(
    r"box(es)?|bbox(es)?|coord(s|inates?)?|landmarks?|keypoints?|pose|offsets?|regression|values?|"
    r"embed(s|dings?)?|features?|hidden|latents?|pooler"
)
#: The same, of outputs that hold scores of classes.
_CLASSES = re.compile(r"logits?|scores?|class(es)?|cls|prob(s|abilit(y|ies))?|labels?|logistic")


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """Whether a model's first output holds scores of classes on its last axis.

    Attributes:
        found: Whether it does.
        why: The reason, for the user: ``"Softmax computes output 'y'"``.
        doubtful: Whether a linear layer alone says so, which may compute values as well.
    """

    found: bool
    why: str
    doubtful: bool = False

    def on(self, *, random_inputs: bool) -> ClassScores:
        """Return it for the inputs at hand.

        A classifier may have one class for all random inputs, so they settle no doubt: a linear
        layer is then taken for one of classes.
        """
        return dataclasses.replace(self, doubtful=False) if random_inputs else self


#: Of arrays that come from no ONNX model.
ASSUMED = ClassScores(True, "the first output is taken for scores of classes")


def find_class_scores(model: onnx.ModelProto) -> ClassScores:
    """Find out whether the first output holds scores of classes on its last axis.

    Args:
        model: A prepared model, without functions.
    """
    graph = model.graph
    output = graph.output[0].name
    last = _last_operator(graph)
    if last is None:
        return ClassScores(
            False, f"no softmax, sigmoid or linear layer computes output {output!r} last"
        )
    computes = f"{last} computes output {output!r}"
    if last in _SOFTMAX:
        return ClassScores(True, computes)
    dims = _dims(graph, output)
    if dims and dims[-1] == 1:
        return ClassScores(False, f"output {output!r} has one column")
    words = _words(output)
    if any(_CLASSES.fullmatch(word) for word in words):
        return ClassScores(True, computes)
    if word := next((word for word in words if _VALUES.fullmatch(word)), ""):
        return ClassScores(False, f"output {output!r} is named after {word!r}, not after classes")
    return ClassScores(True, computes, doubtful=last not in _SIGMOID)


def _last_operator(graph: onnx.GraphProto) -> str | None:
    """Return the type of the last operator whose last axis may be one of classes; None without."""
    producers = {name: node for node in graph.node for name in node.output if name}
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    name = graph.output[0].name
    for _ in range(len(graph.node)):
        node = producers.get(name)
        if node is None or name != node.output[0]:
            return None
        kind = node.op_type
        if kind in _LINEAR or kind in _SIGMOID:
            return kind
        if kind == "Conv":  # its second axis, which is the last where others are gone
            dims = _dims(graph, graph.output[0].name)
            return kind if dims is not None and len(dims) == 2 else None
        if kind in _SOFTMAX:
            axis = next((a.i for a in node.attribute if a.name == "axis"), None)
            dims = _dims(graph, name)
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


def _words(name: str) -> list[str]:
    """Return the words of a name in snake_case, camelCase or with dots, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return [word for word in re.split(r"[^a-z]+", spaced) if word]


def _dims(graph: onnx.GraphProto, name: str) -> list[int | str] | None:
    """Return the dimensions of a value; None where they are not known."""
    for value in (*graph.output, *graph.value_info):
        if value.name == name and (dims := declared_dims(value)) is not None:
            return list(dims)
    return None
