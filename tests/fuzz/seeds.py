"""Seed models for the mutations: small ONNX models with many operators and few elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper, numpy_helper

from tests.fuzz.seed import BOOL, FLOAT, HALF, INT64, Seed, floats, make_model, value
from tests.fuzz.seeds_beyond import SEEDS_BEYOND


def conv_net() -> Seed:
    """Conv, BatchNormalization, Relu, MaxPool, GlobalAveragePool, Flatten, Gemm, Softmax."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"], name="norm", epsilon=1e-5),
        node("Relu", ["n"], ["r"], name="relu"),
        node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["p"], ["a"], name="mean", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        node("GlobalAveragePool", ["a"], ["q"], name="global"),
        node("Flatten", ["q"], ["f"], name="flatten", axis=1),
        node("Gemm", ["f", "d", "e"], ["h"], name="dense", transB=1, alpha=0.5),
        node("Softmax", ["h"], ["y"], name="softmax", axis=-1),
    ]
    constants = {
        "w": floats(4, 3, 3, 3), "b": floats(4), "g": floats(4), "s": floats(4),
        "m": floats(4, seed=1), "v": np.abs(floats(4, seed=2)) + 0.5, "d": floats(5, 4),
        "e": floats(5),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 5])], constants))


def gather_matmul() -> Seed:
    """Two inputs: Gather of rows by ids, MatMul, Add, Where, ReduceMean, ArgMax."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["rows"], name="embed", axis=0),
        node("MatMul", ["rows", "w"], ["m"], name="matmul"),
        node("Add", ["m", "bias"], ["a"], name="add"),
        node("Greater", ["a", "zero"], ["mask"], name="greater"),
        node("Where", ["mask", "a", "x"], ["s"], name="where"),
        node("ReduceMean", ["s"], ["y"], name="mean", axes=[1], keepdims=0),
        node("ArgMax", ["s"], ["k"], name="best", axis=-1, keepdims=0),
    ]
    constants = {
        "table": floats(7, 4), "w": floats(4, 6), "bias": floats(6),
        "zero": np.float32(0),
    }  # fmt: skip
    inputs = [value("ids", [2, 3], INT64), value("x", [2, 3, 6])]
    outputs = [value("y", [2, 6]), value("k", [2, 3], INT64)]
    return Seed(make_model(nodes, inputs, outputs, constants))


def attention() -> Seed:
    """LayerNormalization, MatMul, Transpose, Softmax, Erf and other parts of a transformer."""
    node = helper.make_node
    nodes = [
        node("LayerNormalization", ["x", "scale", "shift"], ["n"], name="norm", axis=-1),
        node("MatMul", ["n", "wq"], ["q"], name="query"),
        node("MatMul", ["n", "wk"], ["k"], name="key"),
        node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s0"], name="scores"),
        node("Div", ["s0", "root"], ["s1"], name="scaled"),
        node("Softmax", ["s1"], ["p"], name="softmax", axis=2),
        node("MatMul", ["p", "n"], ["c"], name="mix"),
        node("Erf", ["c"], ["e"], name="erf"),
        node("Mul", ["c", "e"], ["g"], name="gelu"),
        node("Add", ["g", "x"], ["y"], name="residual"),
    ]
    constants = {
        "scale": floats(8), "shift": floats(8), "wq": floats(8, 8), "wk": floats(8, 8, seed=1),
        "root": np.float32(2.5),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 4, 8])], [value("y", [1, 4, 8])], constants))


def pads_and_slices() -> Seed:
    """Pad, Resize, Slice, Concat, Split, Clip, ReduceMax, Squeeze, Unsqueeze, Tile."""
    node = helper.make_node
    nodes = [
        node("Pad", ["x", "pads", "fill"], ["p"], name="pad", mode="constant"),
        node("Resize", ["p", "", "scales"], ["z"], name="resize", mode="nearest"),
        node("Slice", ["z", "starts", "ends", "axes", "steps"], ["s"], name="slice"),
        node("Split", ["s", "parts"], ["s1", "s2"], name="split", axis=3),
        node("Concat", ["s2", "s1", "s2"], ["c"], name="concat", axis=3),
        node("Clip", ["c", "low", "high"], ["l"], name="clip"),
        node("ReduceMax", ["l"], ["m"], name="max", axes=[1], keepdims=1),
        node("Squeeze", ["m", "one"], ["q"], name="squeeze"),
        node("Unsqueeze", ["q", "one"], ["u"], name="unsqueeze"),
        node("Tile", ["u", "repeats"], ["t"], name="tile"),
        node("LeakyRelu", ["t"], ["y"], name="leaky", alpha=0.1),
    ]
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "fill": np.float32(0.5),
        "scales": np.array([1, 1, 2, 2], np.float32), "starts": np.array([1, 0]),
        "ends": np.array([9, 100]), "axes": np.array([2, 3]), "steps": np.array([2, 1]),
        "parts": np.array([5, 7]), "low": np.float32(-1), "high": np.float32(1),
        "one": np.array([1]), "repeats": np.array([1, 2, 1, 1]),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 2, 4, 4])], [value("y", None)], constants))


def control_flow() -> Seed:
    """If and Loop with bodies that use values from outside."""
    node = helper.make_node
    branches = {
        side: helper.make_graph([node(op, ["x", "w"], [side], name=side)], side, [],
                                [value(side, [2, 3])])
        for side, op in (("then", "Add"), ("other", "Mul"))
    }  # fmt: skip
    body = helper.make_graph(
        [
            node("Identity", ["on"], ["still"], name="still"),
            node("Mul", ["state", "w"], ["scaled"], name="scaled"),
            node("Add", ["scaled", "x"], ["next"], name="next"),
        ],
        "body",
        [value("i", [], INT64), value("on", [], BOOL), value("state", [2, 3])],
        [value("still", [], BOOL), value("next", [2, 3])],
    )
    nodes = [
        node("If", ["flag"], ["c"], name="choice", then_branch=branches["then"],
             else_branch=branches["other"]),
        node("Loop", ["count", "go", "c"], ["l"], name="loop", body=body),
        node("Tanh", ["l"], ["y"], name="tanh"),
    ]  # fmt: skip
    constants = {
        "w": floats(2, 3), "count": np.array(3), "go": np.array(True), "flag": np.array(True),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [2, 3])], [value("y", [2, 3])], constants))


def branch_by_input() -> Seed:
    """An If whose condition is computed from the input."""
    node = helper.make_node
    branches = {
        side: helper.make_graph([node(op, ["x"], [side], name=side)], side, [],
                                [value(side, [2, 3])])
        for side, op in (("then", "Relu"), ("other", "Neg"))
    }  # fmt: skip
    nodes = [
        node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
        node("Less", ["sum", "zero"], ["flag"], name="less"),
        node("If", ["flag"], ["c"], name="choice", then_branch=branches["then"],
             else_branch=branches["other"]),
        node("Sigmoid", ["c"], ["y"], name="sigmoid"),
    ]  # fmt: skip
    constants = {"zero": np.float32(0)}
    return Seed(make_model(nodes, [value("x", [2, 3])], [value("y", [2, 3])], constants))


def quantised() -> Seed:
    """A convolution and a matmul between QuantizeLinear and DequantizeLinear."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="q1"),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="d1"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="d2", axis=0),
        node("Conv", ["xd", "wd"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], name="relu"),
        node("QuantizeLinear", ["r", "rs", "rz"], ["rq"], name="q2"),
        node("DequantizeLinear", ["rq", "rs", "rz"], ["y"], name="d3"),
    ]
    weights = np.random.default_rng(0).integers(-100, 100, (4, 2, 3, 3)).astype(np.int8)
    constants = {
        "xs": np.float32(0.03), "xz": np.uint8(128), "w": weights,
        "ws": np.full(4, 0.01, np.float32), "wz": np.zeros(4, np.int8), "rs": np.float32(0.05),
        "rz": np.uint8(0),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 2, 5, 5])], [value("y", None)], constants))


def half() -> Seed:
    """A float16 model with casts."""
    node = helper.make_node
    nodes = [
        node("Cast", ["x"], ["h"], name="down", to=HALF),
        node("MatMul", ["h", "w"], ["m"], name="matmul"),
        node("Add", ["m", "b"], ["a"], name="add"),
        node("Relu", ["a"], ["r"], name="relu"),
        node("Cast", ["r"], ["y"], name="up", to=FLOAT),
    ]
    constants = {"w": floats(4, 5).astype(np.float16), "b": floats(5).astype(np.float16)}
    return Seed(make_model(nodes, [value("x", [3, 4])], [value("y", [3, 5])], constants))


def shape_arithmetic() -> Seed:
    """Dynamic dimensions; Shape, Gather, Concat, Reshape, Expand and ConstantOfShape in int64."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"], name="shape"),
        node("Gather", ["s", "zero"], ["n"], name="first", axis=0),
        node("Concat", ["n", "minus"], ["t"], name="wanted", axis=0),
        node("Reshape", ["x", "t"], ["r"], name="reshape"),
        node("ConstantOfShape", ["n"], ["f"], name="filled",
             value=numpy_helper.from_array(np.array([2], np.float32))),
        node("Unsqueeze", ["f", "one"], ["u"], name="column"),
        node("Expand", ["u", "wide"], ["e"], name="expand"),
        node("Concat", ["r", "e"], ["c"], name="beside", axis=1),
        node("Range", ["start", "limit", "step"], ["k"], name="range"),
        node("Gather", ["c", "k"], ["y"], name="columns", axis=1),
    ]  # fmt: skip
    constants = {
        "zero": np.array([0]), "minus": np.array([-1]), "one": np.array([1]),
        "wide": np.array([1, 3]), "start": np.array(0), "limit": np.array(6), "step": np.array(2),
    }  # fmt: skip
    inputs = [value("x", ["batch", "c", 2])]
    return Seed(make_model(nodes, inputs, [value("y", ["batch", 3])], constants), "x:2x3x2")


def many_small() -> Seed:
    """Elementwise and indexing operators, each with its own graph output."""
    node = helper.make_node
    nodes = [
        node("Abs", ["x"], ["a"], name="abs"),
        node("Sqrt", ["a"], ["b"], name="sqrt"),
        node("Pow", ["b", "two"], ["c"], name="pow"),
        node("Max", ["c", "x"], ["d"], name="larger"),
        node("CumSum", ["d", "axis"], ["e"], name="cumsum"),
        node("TopK", ["e", "k"], ["f", "g"], name="topk", axis=-1),
        node("GatherElements", ["x", "g"], ["h"], name="elements", axis=-1),
        node("ScatterElements", ["x", "g", "f"], ["i"], name="scatter", axis=-1),
        node("OneHot", ["ids", "depth", "values"], ["o"], name="onehot", axis=-1),
        node("Einsum", ["i", "o"], ["y"], name="einsum", equation="ij,ik->jk"),
        node("HardSigmoid", ["h"], ["z"], name="hard", alpha=0.3),
    ]
    constants = {
        "two": np.float32(2), "axis": np.array(1), "k": np.array([2]), "ids": np.array([1, 0, 2]),
        "depth": np.array(4), "values": np.array([0, 1], np.float32),
    }  # fmt: skip
    outputs = [value("y", None), value("z", None)]
    return Seed(make_model(nodes, [value("x", [3, 5])], outputs, constants))


def transposed() -> Seed:
    """ConvTranspose, InstanceNormalization, PRelu, DepthToSpace, grouped Conv, ReduceL2."""
    node = helper.make_node
    nodes = [
        node("ConvTranspose", ["x", "w"], ["c"], name="up", strides=[2, 2], pads=[0, 0, 1, 1]),
        node("InstanceNormalization", ["c", "s", "b"], ["n"], name="norm"),
        node("PRelu", ["n", "slope"], ["p"], name="prelu"),
        node("DepthToSpace", ["p"], ["d"], name="depth", blocksize=2),
        node("SpaceToDepth", ["d"], ["e"], name="space", blocksize=2),
        node("Conv", ["e", "dw"], ["g"], name="depthwise", group=4, dilations=[2, 2]),
        node("ReduceL2", ["g"], ["r"], name="length", axes=[2, 3], keepdims=1),
        node("Div", ["g", "r"], ["y"], name="div"),
    ]
    constants = {
        "w": floats(2, 4, 3, 3), "s": floats(4), "b": floats(4), "slope": floats(4, 1, 1),
        "dw": floats(4, 1, 2, 2),
    }  # fmt: skip
    return Seed(make_model(nodes, [value("x", [1, 2, 4, 4])], [value("y", None)], constants))


def weight_only() -> Seed:
    """A MatMulNBits with zero points and a bias."""
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s", "z", "", "b"], ["m"], name="dense", domain="com.microsoft",
        K=32, N=6, bits=4, block_size=16,
    )  # fmt: skip
    chance = np.random.default_rng(0)
    constants = {
        "w": chance.integers(0, 256, (6, 2, 8), np.uint8), "s": np.abs(floats(6, 2)) + 0.1,
        "z": np.full((6, 1), 0x77, np.uint8), "b": floats(6),
    }  # fmt: skip
    nodes = [node, helper.make_node("Relu", ["m"], ["y"], name="relu")]
    model = make_model(nodes, [value("x", [1, 2, 32])], [value("y", [1, 2, 6])], constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return Seed(model)


SEEDS: tuple[Callable[[], Seed], ...] = (
    conv_net, gather_matmul, attention, pads_and_slices, control_flow, branch_by_input, quantised,
    half, shape_arithmetic, many_small, transposed, weight_only, *SEEDS_BEYOND,
)  # fmt: skip
