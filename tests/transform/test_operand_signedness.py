"""Products of bytes moved to the signs that a target multiplies: the same numbers, all fused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.emulator import find_tools
from tests.emulator import run as run_emulated
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.intrinsics import multipliable
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.lower import lower
from tvmopt.transform.operand_signedness import ConvertOperandSignedness, shifted_operands

op, nn = relax.op, relax.op.nn
PAIRS = [(data, weight) for data in ("uint8", "int8") for weight in ("int8", "uint8")]
U8S8, S8S8, U8U8, S8U8 = ("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
# They multiply u8 by s8; equal signs; all but s8 by u8.
CPUS = ["cascadelake", "cortex-a76", "hexagon-v68"]


def bytes_of(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Of the whole range, both ends many times."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(seed)
    made = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    made[rng.random(shape) < 0.1] = limits.min
    made[rng.random(shape) < 0.1] = limits.max
    return made


def dense(x, w):
    return op.matmul(x, w, out_dtype="int32")


def dense_numpy(x, w):
    return x.astype("int64") @ w.astype("int64")


def convolution(strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1)):
    """The operator, and the same in NumPy."""

    def build(x, w):
        settings = {"strides": strides, "padding": padding, "dilation": dilation}
        return nn.conv2d(x, w, **settings, **LAYOUT, out_dtype="int32")

    def numpy(x, w):
        x, w = x.astype("int64"), w.astype("int64")
        top, left, bottom, right = padding
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        kh, kw = ((k - 1) * d + 1 for k, d in zip(w.shape[:2], dilation, strict=True))
        high = (x.shape[1] - kh) // strides[0] + 1
        wide = (x.shape[2] - kw) // strides[1] + 1
        out = np.zeros((x.shape[0], high, wide, w.shape[3]), "int64")
        for a in range(w.shape[0]):
            for b in range(w.shape[1]):
                part = x[:, a * dilation[0] :, b * dilation[1] :]
                out += part[:, :: strides[0], :: strides[1]][:, :high, :wide] @ w[a, b]
        return out

    return build, numpy


PRODUCTS = {
    "dense": (dense, dense_numpy, (5, 20), (20, 24)),
    "dense of many": (dense, dense_numpy, (2, 3, 5, 20), (20, 24)),
    "dense of many, each with its own": (dense, dense_numpy, (3, 5, 20), (3, 20, 24)),
    "1x1": (*convolution(), (2, 5, 6, 8), (1, 1, 8, 24)),
    "1x1 strided": (*convolution((2, 3)), (1, 7, 8, 8), (1, 1, 8, 24)),
    "3x3": (*convolution(), (1, 7, 8, 8), (3, 3, 8, 24)),
    "padded": (*convolution(padding=(1, 2, 0, 1)), (2, 7, 8, 8), (3, 3, 8, 24)),
    "strided": (*convolution((2, 1), (1, 1, 1, 1)), (1, 8, 9, 8), (3, 2, 8, 24)),
    "dilated": (*convolution((1, 2), (2, 2, 2, 2), (2, 3)), (1, 9, 11, 8), (3, 3, 8, 24)),
    "ragged": (*convolution(padding=(1, 1, 1, 1)), (1, 6, 6, 5), (3, 3, 5, 19)),
}
# Whose weight is also taken as an input: its sums are then computed.
AT_EVERY_CALL = ["dense of many, each with its own", "strided"]


def module(product, types, constant, after=None):
    """``main`` of one product: an input, and a weight that is a constant or another input."""
    build, _, data, weight = PRODUCTS[product]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data, types[0]))
    w = relax.Var("w", relax.TensorType(weight, types[1]))
    value = relax.const(bytes_of(weight, types[1], 1)) if constant else w
    with builder.function("main", [x] if constant else [x, w], {"num_input": 1 + (not constant)}):
        with builder.dataflow():
            y = builder.normalize(build(x, value))
            out = builder.emit_output(after(builder, y) if after else y)
        builder.emit_func_output(out)
    return builder.get()


def operands(product, types):
    _, numpy, data, weight = PRODUCTS[product]
    x, w = bytes_of(data, types[0]), bytes_of(weight, types[1], 1)
    return x, w, numpy(x, w)


def called(mod) -> list[tvm.ir.Call]:
    """The calls of operators in ``main``."""
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def types_multiplied(mod) -> list[tuple[str, str]]:
    """Types of data and weight of every product."""
    names = "relax.nn.conv2d", "relax.matmul"
    products = [call for call in called(mod) if call.op.name in names]
    return [(str(call.args[0].ty.dtype), str(call.args[1].ty.dtype)) for call in products]


def run(mod, *arrays):
    """Compile and run on this machine, by TVM alone."""
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with target, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.LegalizeOps()(mod)
        machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


# ---- which operands move ----


@pytest.mark.parametrize(
    ("types", "pairs", "moved"),
    [
        (U8S8, {U8S8}, (False, False)),
        (S8S8, {U8S8}, (True, False)),
        (U8U8, {U8S8}, (False, True)),
        (S8U8, {U8S8}, (True, True)),
        (U8S8, {S8S8}, (True, False)),
        (U8U8, {S8S8}, (True, True)),
        (S8U8, {S8S8}, (False, True)),
        (S8U8, {U8S8, U8U8, S8S8}, (True, False)),  # the data: a constant a channel
        (U8S8, {S8U8, S8S8}, (True, False)),
        (U8S8, {S8U8}, (True, True)),
        (U8S8, set(), None),
        (U8S8, {("bfloat16", "bfloat16")}, None),
        (("bfloat16", "bfloat16"), {U8S8}, None),
        (("int8", "bfloat16"), {U8S8}, None),
    ],
)
def test_moved_operands(types, pairs, moved):
    assert shifted_operands(types, pairs) == moved


@pytest.mark.parametrize(
    ("cpu", "pairs"),
    [
        ("cascadelake", {U8S8}),
        ("haswell", {U8S8}),
        ("x86-64", set()),
        ("sapphirerapids", {U8S8, S8S8, U8U8, S8U8, ("bfloat16", "bfloat16")}),
        ("cortex-a76", {S8S8, U8U8}),
        ("raspberry-pi-4", set()),
        ("graviton3", {S8S8, U8U8, U8S8}),
        ("hexagon-v68", {U8S8, U8U8, S8S8}),
        ("sifive-u74", set()),
    ],
)
def test_what_a_target_multiplies(cpu, pairs):
    found = multipliable(resolve_target(cpu, 2).to_tvm())
    assert {pair for pair in found if "bfloat16" not in pair or cpu == "sapphirerapids"} == pairs


# ---- numbers ----


@pytest.mark.parametrize("types", PAIRS, ids="x".join)
@pytest.mark.parametrize(
    ("product", "cpu", "constant"),
    [
        *((product, "cascadelake", True) for product in PRODUCTS),
        *((product, cpu, True) for product in ("dense", "padded") for cpu in CPUS[1:]),
        *((product, "cascadelake", False) for product in PRODUCTS if product in AT_EVERY_CALL),
    ],
)
def test_against_numpy(product, types, cpu, constant):
    target = resolve_target(cpu, 2).to_tvm()
    pairs = multipliable(target)
    mod = module(product, types, constant)
    moved = ConvertOperandSignedness(target)(mod)
    [multiplied] = types_multiplied(moved)
    assert multiplied in pairs
    if types in pairs:
        tvm.ir.assert_structural_equal(moved, mod)
        return
    x, w, expected = operands(product, types)
    np.testing.assert_array_equal(run(moved, *([x] if constant else [x, w])), expected)


def test_a_wrong_correction_is_noticed(monkeypatch):
    from tvmopt.transform import operand_signedness

    target = resolve_target("cascadelake", 2).to_tvm()
    x, _, expected = operands("padded", S8S8)
    mod = module("padded", S8S8, constant=True)
    monkeypatch.setattr(
        operand_signedness, "_shift", lambda dtype: 127 if dtype == "int8" else -127
    )
    wrong = run(ConvertOperandSignedness(target)(mod), x)
    assert not np.array_equal(wrong, expected)


def test_an_operand_is_moved_once_for_all_its_users():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "int8"))
    weights = [bytes_of((8, 16), "int8", seed) for seed in (1, 2)]
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            first, second = (builder.emit(dense(x, relax.const(w))) for w in weights)
            out = builder.emit_output(op.add(first, second))
        builder.emit_func_output(out)
    moved = ConvertOperandSignedness(resolve_target("cascadelake", 2).to_tvm())(builder.get())
    assert types_multiplied(moved) == [U8S8, U8S8]
    casts = [call for call in called(moved) if call.op.name == "relax.astype"]
    assert [str(call.ty.dtype) for call in casts] == ["int16", "uint8"]
    data = bytes_of((4, 8), "int8")
    expected = sum(dense_numpy(data, w) for w in weights)
    np.testing.assert_array_equal(run(moved, data), expected)


# ---- what is left alone ----


@pytest.mark.parametrize("cpu", ["x86-64", "raspberry-pi-4", "sifive-u74"])
@pytest.mark.parametrize("product", ["dense", "padded"])
def test_a_target_without_instructions(product, cpu):
    mod = module(product, S8S8, constant=True)
    moved = ConvertOperandSignedness(resolve_target(cpu, 2).to_tvm())(mod)
    tvm.ir.assert_structural_equal(moved, mod)


def test_a_gpu():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    mod = module("dense", S8S8, constant=True)
    tvm.ir.assert_structural_equal(ConvertOperandSignedness(target)(mod), mod)


def left_alone(build, *shapes):
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(s, dtype)) for n, (s, dtype) in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize(
    "mod",
    [
        left_alone(op.matmul, ((4, 8), "float32"), ((8, 4), "float32")),
        left_alone(lambda x, w: op.matmul(x, w, "float32"), ((4, 8), "int8"), ((8, 4), "int8")),
        left_alone(dense, ((8,), "int8"), ((8, 4), "int8")),
        left_alone(
            lambda x, w: nn.conv2d(x, w, out_dtype="int32"),
            ((1, 8, 6, 6), "int8"), ((4, 8, 3, 3), "int8"),
        ),
        left_alone(
            lambda x, w: nn.conv2d(x, w, groups=2, **LAYOUT, out_dtype="int32"),
            ((1, 6, 6, 8), "int8"), ((3, 3, 4, 4), "int8"),
        ),
        left_alone(op.add, ((4, 8), "int8"), ((4, 8), "int8")),
    ],
    ids=["floats", "a sum in float32", "a vector", "NCHW", "groups", "no product"],
)  # fmt: skip
def test_left_alone(mod):
    moved = ConvertOperandSignedness(resolve_target("cascadelake", 2).to_tvm())(mod)
    tvm.ir.assert_structural_equal(moved, mod)


# ---- after lowering ----


def requantised(builder, y):
    """What follows every product of a quantised model."""
    y = builder.emit(op.add(y, relax.const(np.arange(y.ty.shape[-1].value, dtype="int32"))))
    y = builder.emit(op.multiply(op.astype(y, "float32"), relax.const(np.float32(0.0071))))
    return op.astype(op.clip(op.round(y), -128, 127), "int8")


@pytest.mark.parametrize(
    ("product", "types", "kernels"),
    [
        ("3x3", S8S8, ["reinterpreted data", "product"]),
        ("3x3", U8U8, ["sums", "window sums", "product"]),
        ("dense", S8S8, ["reinterpreted data", "product"]),
    ],
)
def test_all_that_follows_is_fused_with_the_product(product, types, kernels):
    spec = resolve_target("cascadelake", 2)
    mod = lower(module(product, types, True, requantised), spec.to_tvm())
    scripts = [f.script() for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(scripts) == len(kernels)
    with_round = [text for text in scripts if "nearbyint" in text]
    assert len(with_round) == 1
    assert re.search(r'T.Cast\("int32", .*\) \* T.Cast\("int32"', with_round[0])
    scheduled, rules = schedule_module(mod, spec.arch())
    assert list(rules.values()).count("register_tile") == 1
    assert "llvm.x86.avx512.vpdpbusd" in scheduled.script(show_meta=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("cpu", "types", "instruction"),
    [
        ("cortex-a76", U8S8, "sdot"),
        ("cortex-a76", S8U8, "sdot|udot"),
        ("hexagon-v68", S8U8, "vrmpy"),
    ],
)
@pytest.mark.parametrize("product", ["dense", "padded"])
def test_on_the_target(product, cpu, types, instruction):
    """The one function with the product, whose other operands NumPy makes."""
    spec = resolve_target(cpu, 2)
    tools = find_tools(spec.isa)
    if isinstance(tools, str):
        pytest.skip(tools)
    x, _, expected = operands(product, types)
    mod, rules = schedule_module(lower(module(product, types, True), spec.to_tvm()), spec.arch())
    got, assembly = run_calls(mod, {"x": x}, spec)
    assert "register_tile" in rules.values()
    assert re.search(rf"\b({instruction})\b", assembly)
    np.testing.assert_array_equal(got, expected)


def run_calls(mod, values, spec):
    """Each call of ``main`` by the emulator in turn; the last result, and all assembly."""
    from tvmopt.device.llvm import pass_config

    values, assembly, last = dict(values), "", ""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Var):
                values[binding.var.name] = values[call.name]
                continue
            assert call.op.name == "relax.call_tir"
            func = mod[call.args[0]].with_attr("global_symbol", "main")
            with tvm.transform.PassContext(config=pass_config(spec.isa)):
                lib = tvm.tirx.build(tvm.IRModule({"main": func}), target=spec.to_tvm())
            assembly += lib.inspect_source("asm")
            inputs = [
                arg.value.numpy() if hasattr(arg, "value") else values[arg.name]
                for arg in call.args[1].fields
            ]
            shape = tuple(int(e) for e in binding.var.ty.shape)
            result = np.zeros(shape, str(binding.var.ty.dtype))
            [values[binding.var.name]] = run_emulated(lib, inputs, [result], spec.isa)
            last = binding.var.name
    return values[last], assembly
