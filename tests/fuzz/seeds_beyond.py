"""Seed models of what is no plain operator: recurrences, functions, segments, integer operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.seed import Seed, floats, make_model, value

_node = helper.make_node


def recurrent() -> Seed:
    """A bidirectional LSTM with lengths, a GRU that resets late, and an RNN."""
    nodes = [
        _node("LSTM", ["x", "w", "r", "b", "lengths"], ["h", "", "c"], name="lstm", hidden_size=3,
              direction="bidirectional", clip=2.5),
        _node("Transpose", ["h"], ["t"], name="transpose", perm=[0, 2, 1, 3]),
        _node("Reshape", ["t", "shape"], ["g"], name="reshape"),
        _node("GRU", ["g", "gw", "gr", "gb"], ["k", "kh"], name="gru", hidden_size=4,
              linear_before_reset=1),
        _node("Squeeze", ["k", "axis"], ["s"], name="squeeze"),
        _node("RNN", ["s", "nw", "nr"], ["", "z"], name="rnn", hidden_size=2,
              activations=["Relu"]),
        _node("Squeeze", ["z", "first"], ["y"], name="last"),
        _node("Tanh", ["c"], ["state"], name="state"),
    ]  # fmt: skip
    constants = {
        "w": floats(2, 12, 4), "r": floats(2, 12, 3), "b": floats(2, 24),
        "lengths": np.array([5, 3], "int32"), "shape": np.array([5, 2, 6]),
        "gw": floats(1, 12, 6), "gr": floats(1, 12, 4), "gb": floats(1, 24),
        "axis": np.array([1]), "first": np.array([0]), "nw": floats(1, 2, 4), "nr": floats(1, 2, 2),
    }  # fmt: skip
    outputs = [value("y", [2, 2]), value("state", [2, 2, 3])]
    return Seed(make_model(nodes, [value("x", [5, 2, 4])], outputs, constants))


def functions() -> Seed:
    """Functions of the model, one of which calls the other, and operators that have a body."""
    leaky = _node("LeakyRelu", ["a"], ["leaky"], name="leaky")
    gain = leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    gain.ref_attr_name = "gain"
    inner = helper.make_function(
        "local", "Scale", ["a", "s"], ["out"],
        [leaky, _node("Mul", ["leaky", "s"], ["out"], name="scale")],
        [helper.make_opsetid("", 17)], ["gain"],
    )  # fmt: skip
    outer = helper.make_function(
        "local", "Block", ["v", "s"], ["w"],
        [
            _node("Scale", ["v", "s"], ["first"], name="first", domain="local", gain=0.25),
            _node("Scale", ["first", "s"], ["second"], name="second", domain="local", gain=0.5),
            _node("Add", ["second", "v"], ["w"], name="add"),
        ],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )  # fmt: skip
    nodes = [
        _node("Block", ["x", "s"], ["b"], name="block", domain="local"),
        _node("Celu", ["b"], ["c"], name="celu", alpha=0.7),
        _node("Shrink", ["c"], ["y"], name="shrink", lambd=0.2, bias=0.1),
    ]
    model = make_model(
        nodes, [value("x", [2, 6])], [value("y", [2, 6])], {"s": floats(6)},
        functions=[inner, outer],
    )  # fmt: skip
    return Seed(model)


def segments() -> Seed:
    """Operators that run in ONNX Runtime, and shapes that are known at run time only."""
    nodes = [
        _node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["kept"], name="nms"),
        _node("Gather", ["kept", "column"], ["rows"], name="column", axis=1),
        _node("Reshape", ["boxes", "four"], ["flat"], name="flat"),
        _node("Gather", ["flat", "rows"], ["found"], name="gather"),
        _node("ReduceMax", ["found"], ["best"], name="best", axes=[0], keepdims=0),
        _node("Reshape", ["boxes", "square"], ["matrices"], name="square"),
        _node("Det", ["matrices"], ["det"], name="det"),
        _node("Add", ["best", "det"], ["y"], name="add"),
    ]
    constants = {
        "most": np.array([2]), "overlap": np.array([0.5], "float32"), "column": np.array(2),
        "four": np.array([4, 4]), "square": np.array([1, 4, 4]),
    }  # fmt: skip
    inputs = [value("boxes", [1, 4, 4]), value("scores", [1, 1, 4])]
    return Seed(make_model(nodes, inputs, [value("y", [4])], constants))


def integer_operators() -> Seed:
    """QLinearConv, DynamicQuantizeLinear, MatMulInteger, QLinearMatMul."""
    nodes = [
        _node("QuantizeLinear", ["x", "xs", "xz"], ["q"], name="quantize"),
        _node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "os", "oz", "b"], ["c"],
              name="conv", pads=[1, 1, 1, 1]),
        _node("DequantizeLinear", ["c", "os", "oz"], ["d"], name="dequantize"),
        _node("Flatten", ["d"], ["f"], name="flatten"),
        _node("DynamicQuantizeLinear", ["f"], ["g", "gs", "gz"], name="dynamic"),
        _node("MatMulInteger", ["g", "m", "gz"], ["i"], name="product"),
        _node("Cast", ["i"], ["j"], name="cast", to=1),
        _node("Mul", ["j", "gs"], ["y"], name="scale"),
    ]  # fmt: skip
    chance = np.random.default_rng(1)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(128),
        "w": chance.integers(-9, 9, (2, 3, 3, 3), "int8"),
        "ws": np.array([0.1, 0.2], "float32"), "wz": np.array([0, 0], "int8"),
        "os": np.float32(0.3), "oz": np.uint8(100), "b": np.array([5, -7], "int32"),
        "m": chance.integers(-9, 9, (32, 3), "int8"),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 3, 4, 4])], [value("y", [1, 3])], constants))


def scan() -> Seed:
    """A Scan of a constant number of steps, whose states and rows are both used."""
    body = helper.make_graph(
        [
            _node("Mul", ["state", "w"], ["scaled"], name="scaled"),
            _node("Add", ["scaled", "row"], ["next"], name="next"),
            _node("Relu", ["next"], ["out"], name="out"),
        ],
        "body",
        [value("state", [3]), value("row", [3])],
        [value("next", [3]), value("out", [3])],
    )
    nodes = [
        _node("Scan", ["start", "x"], ["end", "rows"], name="scan", body=body, num_scan_inputs=1),
        _node("ReduceSum", ["rows", "axes"], ["sum"], name="sum", keepdims=0),
        _node("Add", ["sum", "end"], ["y"], name="add"),
    ]
    constants = {"start": floats(3), "w": floats(3, seed=1), "axes": np.array([0], "int64")}
    return Seed(make_model(nodes, [value("x", [4, 3])], [value("y", [3])], constants))


SEEDS_BEYOND: tuple[Callable[[], Seed], ...] = (
    recurrent, functions, segments, integer_operators, scan,
)  # fmt: skip
