"""Max and min propagate NaN: rewritten functions, machine code, and ONNX operators."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import s_tir, te, tirx
from tvm.script import tirx as T  # noqa: N812

from tests.emulator.cuda import run as emulate
from tvmopt.compare import same_non_finite
from tvmopt.device.gpus import GPUS
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.frontend.reference import Reference
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.passes.keep_nan import keep_nan_in, keep_nan_in_source
from tvmopt.kernels.policies import policy_of
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

_TARGETS = {
    "x86": {"kind": "llvm", "mcpu": "sapphirerapids"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"},
    "riscv64": {
        "kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "generic-rv64",
        "mattr": ["+m", "+a", "+f", "+d", "+v"],
    },
}  # fmt: skip
_ZERO, _SIX = tirx.const(0.0, "float32"), tirx.const(6.0, "float32")


@T.prim_func(s_tir=True)
def _before(
    a: T.Buffer((8,), "float32"),
    b: T.Buffer((8,), "float32"),
    c: T.Buffer((8,), "float32"),
    d: T.Buffer((8,), "int32"),
) -> None:
    for i in range(8):
        c[i] = T.max(a[i], T.float32(0))
        c[i] = T.min(a[i], b[i])
        c[0] = T.max(a[i], c[0])
        c[i] = T.max(c[i], T.float32(0))
        d[i] = T.Cast("int32", T.max(a[i], T.float32(0)))
        d[i] = T.max(d[i], 0)


@T.prim_func(s_tir=True)
def _after(
    a: T.Buffer((8,), "float32"),
    b: T.Buffer((8,), "float32"),
    c: T.Buffer((8,), "float32"),
    d: T.Buffer((8,), "int32"),
) -> None:
    for i in range(8):
        x = T.float32()
        c[i] = T.Let(T.Select(x < T.float32(0), T.float32(0), x), where={x: a[i]})
        y = T.float32()
        z = T.float32()
        c[i] = T.Let(
            T.Let(T.Select(T.Not(z == z), z, T.Select(y > z, z, y)), where={z: b[i]}),
            where={y: a[i]},
        )
        w = T.float32()
        c[0] = T.Let(T.Select(c[0] > w, c[0], w), where={w: a[i]})
        v = T.float32()
        c[i] = T.Let(T.Select(v < T.float32(0), T.float32(0), v), where={v: c[i]})
        d[i] = T.Cast("int32", T.max(a[i], T.float32(0)))
        d[i] = T.max(d[i], 0)


@T.prim_func(s_tir=True)
def _padded_max(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")) -> None:
    row = T.alloc_buffer((8,), "float32")
    for i in range(8):
        row[i] = T.if_then_else(i < 4, x[i % 4], T.float32(-3.4028234663852886e38))
    for i in range(4):
        y[i] = T.float32(-3.4028234663852886e38)
        for k in range(3):
            y[i] = T.max(y[i], row[i + k])


def test_padding_in_a_buffer_neither_hides_nor_spreads_nan() -> None:
    """As in ONNX Runtime: the next number replaces NaN, and padding is no number."""
    target = tvm.target.Target({"kind": "llvm"})
    func = _padded_max.with_attr("target", target).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": keep_nan_in(func, "cpu")}), target=target)
    nan = np.float32(np.nan)
    for x, wanted in (
        ([nan, 1, 2, 3], [2, 3, 3, 3]),
        ([1, 2, nan, 3], [nan, 3, 3, 3]),
        ([1, 2, 3, nan], [3, nan, nan, nan]),
        ([nan, nan, nan, nan], [nan, nan, nan, nan]),
    ):
        y = tvm.runtime.empty((4,), "float32")
        built["main"](tvm.runtime.tensor(np.array(x, "float32")), y)
        np.testing.assert_array_equal(y.numpy(), np.array(wanted, "float32"))


def test_extrema_of_floats_become_selects_that_keep_nan() -> None:
    tvm.ir.assert_structural_equal(keep_nan_in(_before, "cpu").body, _after.body, True)


def _assembly(compute, target: str) -> str:
    a, b = (te.placeholder((1024,), "float32", name) for name in "AB")
    out = te.compute((1024,), lambda i: compute(a[i], b[i]), "C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, out]))
    _, inner = sch.split(sch.get_loops(sch.get_sblock("C"))[0], [None, 16])
    sch.vectorize(inner)
    built = tvm.tirx.build(
        sch.mod, target=tvm.target.Target(_TARGETS[target]), pipeline=CPU_PIPELINE
    )
    text = built.inspect_source("asm")
    return text[text.index("main_compute_:") :].split("-- End")[0]


@pytest.mark.parametrize("bounds", [1, 2])
def test_a_bound_is_one_instruction_on_x86(bounds) -> None:
    text = _assembly(
        lambda a, b: te.max(te.min(a * b, _SIX) if bounds == 2 else a * b, _ZERO), "x86"
    )
    multiplies, found = text.count("vmulps"), re.findall(r"vm(?:ax|in)ps", text)
    assert multiplies and len(found) == bounds * multiplies
    assert not re.search(r"vcmp|vblend|\{%k", text)


def test_a_bound_is_one_instruction_that_keeps_nan_on_aarch64() -> None:
    text = _assembly(lambda a, b: te.max(te.min(a, _SIX), _ZERO), "aarch64")
    assert re.search(r"fmax\s+v\d+\.4s", text) and re.search(r"fmin\s+v\d+\.4s", text)
    assert not re.search(r"fmaxnm|fminnm|fcmgt", text)


def test_a_bound_is_no_maximum_that_drops_nan_on_riscv() -> None:
    text = _assembly(lambda a, b: te.max(a, _ZERO), "riscv64")
    assert "vmflt.vf" in text and "vfmax" not in text
    assert "vmflt.vv" in _assembly(te.max, "riscv64")


_X = np.linspace(-2, 2, 64).astype(np.float32)
_X[[3, 17, 18, 33, 34, 40, 41, 63]] = [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-42, -1e-42, np.nan]
_ALONE = [
    "Relu", "HardSwish", "HardSigmoid", "LeakyRelu", "Softmax", "Sigmoid", "Tanh", "Erf", "Gelu",
    "Elu", "Selu", "Softplus", "Softsign", "Mish", "Exp", "Log", "Sqrt", "Round", "Floor", "Abs",
    "Reciprocal", "LogSoftmax",
]  # fmt: skip
_BOUNDS = {"Clip": (0.0, 6.0), "PRelu": (0.25,), "Max": (0.0,), "Min": (0.0,), "Pow": (2.0,)}


def _operators() -> onnx.ModelProto:
    """Build a model with one output per operator, all of one input."""
    nodes, weights = [], []
    for op in (*_ALONE, *_BOUNDS):
        names = []
        for number, value in enumerate(_BOUNDS.get(op, ())):
            names.append(f"{op}_{number}")
            weights.append(onnx.numpy_helper.from_array(np.array(value, np.float32), names[-1]))
        nodes.append(helper.make_node(op, ["x", *names], [op]))
    nodes.append(helper.make_node("Max", ["x", "rolled"], ["max_of_tensors"]))
    weights.append(onnx.numpy_helper.from_array(np.roll(_X, 7), "rolled"))
    outputs = [
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [64]) for node in nodes
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    graph = helper.make_graph(nodes, "operators", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def answers():
    """Return the outputs of ONNX Runtime and of the compiled model, by operator."""
    prepared = prepare(_operators(), {})
    reference = Reference(prepared.reference)
    module = import_onnx(prepared.model, layer_table(prepared.model))
    got = compile_for_check(module, resolve_target("host", 1))([_X])
    pairs = zip(got, reference({"x": _X}), strict=True)
    return dict(zip(reference.output_names, pairs, strict=True))


@pytest.mark.parametrize("operator", [*_ALONE, *_BOUNDS, "max_of_tensors"])
def test_nan_and_infinities_are_where_onnx_runtime_has_them(answers, operator) -> None:
    got, wanted = answers[operator]
    assert same_non_finite(got, wanted)
    assert np.isnan(got).any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bound", ["clip", "maximum"])
def test_gpu_kernels_keep_nan(dtype, bound) -> None:
    a, b = (te.placeholder((64, 96), dtype, name) for name in "AB")
    zero, six = tirx.const(0.0, dtype), tirx.const(6.0, dtype)
    clip = bound == "clip"
    out = te.compute(
        (64, 96), lambda *i: te.max(te.min(a[i], six), zero) if clip else te.max(a[i], b[i]), "C"
    )
    func, arch = te.create_prim_func([a, out] if clip else [a, b, out]), GPUS["nvidia-h200"]
    x, y = np.random.default_rng(0).standard_normal((2, 64, 96)).astype(dtype)
    x[3, 5], y[4, 6], x[7, 7], x[8, 8] = np.nan, np.nan, np.inf, -np.inf
    wanted = np.clip(x, 0, 6) if clip else np.maximum(x, y)
    hint = list(policy_of(func, arch).ranked)[1].hint
    zeros = np.zeros((64, 96), dtype)
    [got] = emulate(emit_kernel(func, hint), [x] if clip else [x, y], [zeros], arch)
    np.testing.assert_array_equal(got, wanted)


def test_cuda_functions_of_half_precision_keep_nan() -> None:
    before = "  return __hgt(__half(a), __half(b)) ? a : b;\n  return __hlt(a, b) ? a : b;\n"
    after = "  return __hmax_nan(a, b);\n  return __hmin_nan(a, b);\n"
    assert keep_nan_in_source(before) == after
