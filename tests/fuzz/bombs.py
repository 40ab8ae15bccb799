"""Small models that ask for excessive memory, time or recursion depth."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def _constant(model, array):
    name = f"bomb{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def _output(model, name):
    model.graph.output.append(helper.make_empty_tensor_value_info(name))


def _first_input(model):
    return model.graph.input[0].name if model.graph.input else "x"


def filled(model, chance):
    """ConstantOfShape of 2^32 elements."""
    shape = _constant(model, np.array(chance.choice([[2**32], [2**62, 4], [2**16, 2**16], [-1]])))
    nodes = [helper.make_node("ConstantOfShape", [shape], ["big"])]
    if chance.random() < 0.5:
        nodes.append(helper.make_node("ReduceSum", ["big"], ["small"], keepdims=0))
    model.graph.node.extend(nodes)
    _output(model, nodes[-1].output[0])


def tiled(model, chance):
    """Tile or Expand of an input to 2^32 elements."""
    name = _first_input(model)
    dims = len(model.graph.input[0].type.tensor_type.shape.dim) if model.graph.input else 1
    by = _constant(model, np.array([2**32, *[1] * max(0, dims - 1)]))
    operator = chance.choice(["Tile", "Expand"])
    model.graph.node.append(helper.make_node(operator, [name, by], ["big"]))
    _output(model, "big")


def ranged(model, chance):
    """Range of 2^40 elements, or with steps of 0 or NaN."""
    if chance.random() < 0.5:
        ends = [0, chance.choice([2**31, 2**40, 2**62]), chance.choice([1, 0, -1])]
        names = [_constant(model, np.array(end, np.int64)) for end in ends]
    else:
        ends = [0.0, chance.choice([1e9, 1e30, float("inf"), float("nan")]), 1e-30]
        names = [_constant(model, np.array(end, np.float32)) for end in ends]
    model.graph.node.append(helper.make_node("Range", names, ["big"]))
    _output(model, "big")


def padded(model, chance):
    """Pad or Resize of an input beyond available memory."""
    name = _first_input(model)
    dims = len(model.graph.input[0].type.tensor_type.shape.dim) if model.graph.input else 1
    if chance.random() < 0.5:
        by = _constant(model, np.array([chance.choice([2**31, 2**40, -(2**40)])] * (2 * dims)))
        node = helper.make_node("Pad", [name, by], ["big"])
    else:
        by = _constant(model, np.array([chance.choice([1e4, 1e12, 0, -1, np.nan])] * dims, "f4"))
        node = helper.make_node("Resize", [name, "", by], ["big"], mode="nearest")
    model.graph.node.append(node)
    _output(model, "big")


def doubled(model, chance):
    """A value concatenated with itself 20 to 40 times."""
    name = _first_input(model)
    for step in range(chance.choice([20, 30, 40])):
        new = f"doubled{step}"
        model.graph.node.append(helper.make_node("Concat", [name, name], [new], axis=0))
        name = new
    _output(model, name)


def endless(model, chance):
    """An endless Loop."""
    condition = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    still = helper.make_tensor_value_info("still", TensorProto.BOOL, [])
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    state = helper.make_tensor_value_info("state", TensorProto.FLOAT, [])
    after = helper.make_tensor_value_info("after", TensorProto.FLOAT, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]),
         helper.make_node("Identity", ["state"], ["after"])],
        "endless", [number, condition, state], [still, after],
    )  # fmt: skip
    count = "" if chance.random() < 0.5 else _constant(model, np.array(2**62))
    go, start = _constant(model, np.array(True)), _constant(model, np.float32(1))
    model.graph.node.append(helper.make_node("Loop", [count, go, start], ["end"], body=body))
    _output(model, "end")


def nested(model, chance):
    """Nested If nodes, as deep as Python can build them."""
    flag = _constant(model, np.array(True))
    value = helper.make_tensor_value_info("r", TensorProto.BOOL, [])
    graph = helper.make_graph([helper.make_node("Identity", [flag], ["r"])], "g", [], [value])
    for _ in range(chance.choice([3, 10, 20, 30])):
        other = helper.make_graph([helper.make_node("Identity", [flag], ["r"])], "e", [], [value])
        node = helper.make_node("If", [flag], ["r"], then_branch=graph, else_branch=other)
        graph = helper.make_graph([node], "g", [], [value])
    model.graph.node.extend(graph.node)
    _output(model, "r")


def deep_bytes(depth):
    """Graphs nested through node attributes, as bytes of a model."""
    content = b""
    for _ in range(depth):
        for field in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = bytes([field << 3 | 2]) + _varint(len(content)) + content
    return bytes([7 << 3 | 2]) + _varint(len(content)) + content  # ModelProto.graph


def _varint(number):
    content = b""
    while number > 127:
        content += bytes([number & 127 | 128])
        number >>= 7
    return content + bytes([number])


def long_chain(model, chance):
    """Hundreds of small nodes in a row."""
    name = _first_input(model)
    operator = chance.choice(["Identity", "Neg", "Relu"])
    for step in range(chance.choice([100, 400])):
        model.graph.node.append(helper.make_node(operator, [name], [f"chain{step}"]))
        name = f"chain{step}"
    _output(model, name)


def many_outputs(model, chance):
    """One node with very many outputs or inputs."""
    name = _first_input(model)
    if chance.random() < 0.5:
        names = [f"part{i}" for i in range(chance.choice([50, 2000]))]
        node = helper.make_node("Split", [name], names, axis=0)
    else:
        node = helper.make_node("Sum", [name] * chance.choice([50, 300]), ["sum"])
    model.graph.node.append(node)
    _output(model, node.output[0])


def deep_type(model, chance):
    """A type that is a sequence of sequences of sequences."""
    value = model.graph.value_info.add(name="deep")
    kind = value.type
    for _ in range(chance.choice([5, 40, 90])):
        kind = kind.sequence_type.elem_type
    kind.tensor_type.elem_type = TensorProto.FLOAT


def one_hot(model, chance):
    """OneHot, EyeLike or TopK of absurd size."""
    ids = _constant(model, np.array([0, 1]))
    depth = _constant(model, np.array(chance.choice([2**31, 2**40, -1, 0])))
    values = _constant(model, np.array([0, 1], np.float32))
    model.graph.node.append(helper.make_node("OneHot", [ids, depth, values], ["big"]))
    _output(model, "big")


BOMBS = (
    filled, tiled, ranged, padded, doubled, endless, nested, long_chain, many_outputs, deep_type,
    one_hot,
)  # fmt: skip
