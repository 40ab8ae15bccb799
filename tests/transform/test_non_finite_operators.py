"""Single operators on NaN, infinities, huge and subnormal values, against ONNX Runtime.

One model has one output per operator and is compiled once. Hypothesis draws its inputs.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.compare import same_non_finite
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.frontend.reference import Reference
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

SHAPE = (1, 8, 4, 4)
SIZE = 128
RNG = np.random.default_rng(0)
WEIGHTS = {
    "zero": np.float32(0), "six": np.float32(6), "two": np.float32(2), "half": np.float32(0.5),
    "nan": np.float32(np.nan), "slope": RNG.uniform(0.1, 0.5, (8, 1, 1)).astype(np.float32),
    "other": RNG.standard_normal(SHAPE).astype(np.float32),
    "w1": RNG.uniform(0.5, 1, (8, 8, 1, 1)).astype(np.float32),
    "w3": RNG.uniform(0.5, 1, (8, 1, 3, 3)).astype(np.float32),
    "matrix": RNG.uniform(0.5, 1, (4, 5)).astype(np.float32),
    "scale": RNG.uniform(0.5, 1, 8).astype(np.float32), "bias": np.zeros(8, np.float32),
    "scale4": RNG.uniform(0.5, 1, 4).astype(np.float32), "bias4": np.zeros(4, np.float32),
    "sizes": np.array([1, 8, 8, 8]), "axes3": np.array([3]), "axes23": np.array([2, 3]),
    "k": np.array([2]), "shape": np.array([1, 8, 16]),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Op:
    """A node with input ``x``.

    Attributes:
        kind: The ONNX operator.
        inputs: Names of inputs: ``x`` and weights.
        attributes: Attributes of the node.
        outputs: Number of outputs.
        before: A node that computes ``t`` from ``x``; ``inputs`` may name ``t``.
        takes: Values that ``x`` may hold. ``"all"``. ``"one huge"``: at most one huge value, as
            sums of several overflow in some orders only. ``"no huge"``. ``"no nan"``: no NaN among
            numbers, because the result depends on its place; NaN everywhere is allowed.
            ``"numbers"``: ONNX Runtime loses even NaN everywhere.
        avoid: Values that ONNX Runtime treats differently; see ``OWN_WAYS``.
    """

    kind: str
    inputs: tuple[str, ...] = ("x",)
    attributes: dict = dataclasses.field(default_factory=dict)
    outputs: int = 1
    before: str = ""
    takes: str = "all"
    avoid: tuple[float, ...] = ()


def op(
    kind: str, *inputs: str, takes: str = "all", outputs: int = 1, before: str = "",
    avoid: tuple[float, ...] = (), **attributes,
) -> Op:  # fmt: skip
    return Op(kind, inputs or ("x",), attributes, outputs, before, takes, avoid)


INF = float("inf")
# ``avoid``: we differ from ONNX Runtime on purpose. Clip without an upper bound: ONNX Runtime
# clips to 3.4e38. Pow(-inf, 0.5): C says inf, a square root NaN. Gelu by tanh of -inf: -inf times
# zero, or times its rounding error. A maximum of -inf only: ONNX Runtime may initialise with
# -3.4e38.
ELEMENTWISE = {
    kind: op(kind)
    for kind in (
        "Relu", "HardSwish", "HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Elu", "Selu",
        "Softplus", "Softsign", "Mish", "Exp", "Log", "Sqrt", "Round", "Floor", "Ceil",
        "Abs", "Neg", "Sign", "Reciprocal", "ThresholdedRelu", "Sin", "Cos", "Atan", "IsNaN",
        "Identity",
    )
} | {
    "Gelu": op("Gelu"), "Gelu tanh": op("Gelu", approximate="tanh", avoid=(-INF,)),
    "IsInf": op("IsInf"),
    "Clip": op("Clip", "x", "zero", "six"), "Clip below": op("Clip", "x", "zero", avoid=(INF,)),
    "Max": op("Max", "x", "half"), "Min": op("Min", "x", "half"),
    "Max of NaN": op("Max", "x", "nan"),
    "Max of tensors": op("Max", "x", "other"), "Min of tensors": op("Min", "other", "x"),
    "PRelu": op("PRelu", "x", "slope"),
    "Pow": op("Pow", "x", "two"), "Pow half": op("Pow", "x", "half", avoid=(-INF,)),
    "Add": op("Add", "x", "other"), "Sub": op("Sub", "x", "other"), "Mul": op("Mul", "x", "other"),
    "Div": op("Div", "x", "other"), "Div by": op("Div", "other", "x"),
    "Square": op("Mul", "x", "x"),
    "Greater": op("Greater", "x", "other"), "Less": op("Less", "x", "other"),
    "GreaterOrEqual": op("GreaterOrEqual", "x", "other"),
    "LessOrEqual": op("LessOrEqual", "x", "other"), "Equal": op("Equal", "x", "other"),
    "Where": op("Where", "t", "x", "other", before="Greater"),
    "Where else": op("Where", "t", "other", "x", before="Greater"),
    "Cast to half": op("Cast", to=TensorProto.FLOAT16),
    "Cast to bool": op("Cast", to=TensorProto.BOOL),
    "Transpose": op("Transpose", perm=[0, 2, 3, 1]), "Reshape": op("Reshape", "x", "shape"),
    "BatchNormalization": op(
        "BatchNormalization", "x", "scale", "bias", "bias", "scale", takes="no huge"
    ),
    "Resize nearest": op(
        "Resize", "x", "", "", "sizes", mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
}  # fmt: skip
SUMS = {
    "ReduceSum": op("ReduceSum", "x", "axes3", takes="one huge"),
    "ReduceMean": op("ReduceMean", "x", "axes23", takes="one huge"),
    "ReduceL1": op("ReduceL1", "x", "axes3", takes="one huge"),
    "ReduceSumSquare": op("ReduceSumSquare", "x", "axes3", takes="one huge"),
    "ReduceProd": op("ReduceProd", "x", "axes3", takes="no nan"),
    "Conv": op("Conv", "x", "w1", takes="one huge"),
    "Depthwise": op("Conv", "x", "w3", group=8, pads=[1, 1, 1, 1], takes="one huge"),
    "MatMul": op("MatMul", "x", "matrix", takes="one huge"),
    "Softmax": op("Softmax", axis=3, takes="one huge"),
    "LogSoftmax": op("LogSoftmax", axis=3, takes="one huge"),
    "LayerNormalization": op("LayerNormalization", "x", "scale4", "bias4", takes="no huge"),
    "InstanceNormalization": op("InstanceNormalization", "x", "scale", "bias", takes="no huge"),
    "LRN": op("LRN", size=3),
    "LRN of 5": op("LRN", size=5, alpha=0.5, beta=0.5, bias=2.0),
    "GlobalAveragePool": op("GlobalAveragePool", takes="one huge"),
    "AveragePool": op("AveragePool", kernel_shape=[2, 2], takes="one huge"),
    "AveragePool padded": op(
        "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], takes="one huge"
    ),
    "CumSum": op("CumSum", "x", "three", takes="one huge"),
}
EXTREMA = {
    "MaxPool": op("MaxPool", kernel_shape=[2, 2], strides=[2, 2], avoid=(-INF,), takes="no nan"),
    "MaxPool padded": op(
        "MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], avoid=(-INF,), takes="numbers"
    ),
    "GlobalMaxPool": op("GlobalMaxPool", avoid=(-INF,), takes="no nan"),
    "ReduceMax": op("ReduceMax", "x", "axes3", takes="no nan"),
    "ReduceMin": op("ReduceMin", "x", "axes23", takes="no nan"),
    "ArgMax": op("ArgMax", axis=3, takes="no nan"),
    "TopK": op("TopK", "x", "k", outputs=2, takes="numbers"),
}
WEIGHTS["three"] = np.array(3)
OPERATORS = ELEMENTWISE | SUMS | EXTREMA


def model_of(operators: dict[str, Op]) -> onnx.ModelProto:
    nodes, names = [], []
    for name, one in operators.items():
        prefix = name.replace(" ", "_")
        inputs = [f"{prefix}_t" if i == "t" else i for i in one.inputs]
        if one.before:
            nodes.append(helper.make_node(one.before, ["x", "other"], [f"{prefix}_t"]))
        outputs = [f"{prefix}_{n}" for n in range(one.outputs)]
        nodes.append(helper.make_node(one.kind, inputs, outputs, **one.attributes))
        names += outputs
    used = {i for node in nodes for i in node.input}
    weights = [numpy_helper.from_array(v, k) for k, v in WEIGHTS.items() if k in used]
    graph = helper.make_graph(
        nodes, "operators", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_empty_tensor_value_info(name) for name in names], weights,
    )  # fmt: skip
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def answers(operators: dict[str, Op]):
    """Return a function from ``x`` to our output and ONNX Runtime's, by operator."""
    prepared = prepare(model_of(operators), {})
    reference = Reference(prepared.reference)
    module = import_onnx(prepared.model, layer_table(prepared.model))
    run = compile_for_check(module, resolve_target("host", 1))

    def of(x: np.ndarray) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
        pairs = zip(run([x]), reference({"x": x}), strict=True)
        return {name: [next(pairs) for _ in range(o.outputs)] for name, o in operators.items()}

    return of


SPECIAL = [
    np.nan, INF, -INF, 3e38, -3e38, 1e38, -1e38, 88.0, -104.0, 1e-42, -1e-42, 0.0, -0.0,
]  # fmt: skip


@st.composite
def arrays(draw) -> np.ndarray:
    """Draw numbers with special values in some places; sometimes one value everywhere."""
    x = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(SIZE).astype(np.float32)
    if draw(st.integers(0, 7)) == 0:
        x[:] = draw(st.sampled_from(SPECIAL))
    places = st.integers(0, SIZE - 1)
    for place, value in draw(st.lists(st.tuples(places, st.sampled_from(SPECIAL)), max_size=12)):
        x[place] = value
    return x.reshape(SHAPE)


def fit(x: np.ndarray, takes: str, avoid: tuple[float, ...] = ()) -> np.ndarray:
    """Return ``x`` without values for which the result of an operator is undefined."""
    y = np.where(np.isin(x, np.float32(avoid)), np.float32(1), x)
    if takes != "all":
        huge = np.isfinite(y) & (np.abs(y) > 1e6)
        huge.flat[np.flatnonzero(huge)[: 1 if takes == "one huge" else 0]] = False
        y[huge] = 1.0
    if takes == "numbers" or (takes == "no nan" and not np.isnan(y).all()):
        y[np.isnan(y)] = 1.0
    return y


@pytest.fixture(scope="module")
def answer():
    return answers(OPERATORS)


@settings(max_examples=25, deadline=None)
@given(x=arrays())
def test_nan_and_infinities_are_where_onnx_runtime_has_them(answer, x) -> None:
    wrong = []
    for takes, avoid in sorted({(o.takes, o.avoid) for o in OPERATORS.values()}):
        for name, pairs in answer(fit(x, takes, avoid)).items():
            one = OPERATORS[name]
            if (one.takes, one.avoid) == (takes, avoid) and not all(same(*p) for p in pairs):
                wrong.append(name)
    assert not wrong, wrong


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    if wanted.dtype.kind in "iub":
        return np.array_equal(got, wanted)
    return same_non_finite(got, wanted)


@pytest.mark.sample(5)
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("schedule", ["none", "default"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ],
    ids=["same", "strided", "ceil"],
)
def test_padding_does_not_take_the_place_of_nan(
    channels, schedule, layout, window, tmp_path
) -> None:
    shape = [1, channels, 14, 14]
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], **window)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "pool", [x], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    module = import_onnx(prepare(model, {}).model)
    target = resolve_target("host", 1)
    lowered = lower(convert_module(module, layout=layout).mod, target.to_tvm())
    path = tmp_path / "pool.so"
    build_library(lowered, target, path, schedule=schedule)
    run = loaded(path)
    for value in (np.nan, np.inf):
        [got] = run(np.full(shape, value, np.float32))
        np.testing.assert_array_equal(got, np.full_like(got, value))


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_an_index_is_valid_whatever_the_values(kind) -> None:
    of = answers({kind: op(kind, axis=3)})
    for value in (np.nan, INF, -INF):
        x = np.full(SHAPE, value, np.float32)
        [(got, wanted)] = of(x)[kind]
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(got, np.zeros_like(got))
