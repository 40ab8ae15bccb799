"""bfloat16 legalised as uint16: right for every value, in 16-bit buffers, and vectorised."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, s_tir, te, tirx

from tests.kernels.cpu.harness import (
    ARCH,
    TARGET,
    Operand,
    apply_template,
    lower,
    prim_funcs,
    run,
)
from tvmopt import host
from tvmopt.kernels.cpu.passes.bfloat16_bits import keep_bfloat16_bits
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.module_schedules import schedule_module

op, nn = relax.op, relax.op.nn
BF16 = np.dtype(ml_dtypes.bfloat16)
EVERY = np.arange(1 << 16, dtype=np.uint16)


def scheduled(build: Callable[..., relax.Expr], operands: Sequence[Operand]) -> tirx.PrimFunc:
    """Return the one function of ``build(*operands)`` with its top-1 schedule."""
    [func] = prim_funcs(lower(build, operands)).values()
    return schedule_function(func, ARCH).func.with_attr("global_symbol", "main")


def compiled(func: tirx.PrimFunc) -> Any:
    return tvm.tirx.build(tvm.IRModule({"main": func}), target=TARGET)


def call(func: tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    """Run ``func`` on ``arrays``."""
    out = func.params[-1]
    shape = tuple(int(e) for e in out.shape)
    result = tvm.runtime.tensor(np.full(shape, 77).astype(str(out.dtype)))
    compiled(func)["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def rounded(x: np.ndarray) -> np.ndarray:
    """Round float32 ``x`` to bfloat16 bits: to nearest even; a NaN becomes quiet."""
    bits = x.view(np.uint32)
    upper = bits >> 16
    odd = upper & 1
    near = ((bits + np.uint32(0x7FFF) + odd) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (upper | 0x40).astype(np.uint16), near)


# ---- casts ----


def widen(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "float32")


def narrow(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "bfloat16")


def test_every_bfloat16_is_widened_exactly() -> None:
    got = call(scheduled(widen, [(EVERY.shape, "bfloat16")]), EVERY.view(BF16))
    np.testing.assert_array_equal(got.view(np.uint32), EVERY.astype(np.uint32) << 16)


def test_every_bfloat16_and_what_is_beside_it_is_rounded() -> None:
    """Test below and above each value: a quarter ulp, a tie, and the neighbours of the tie."""
    offsets = np.uint32([0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF])
    x = (EVERY.astype(np.uint32)[:, None] << 16 | offsets).reshape(-1).view(np.float32)
    got = call(scheduled(narrow, [(x.shape, "float32")]), x).view(np.uint16)
    np.testing.assert_array_equal(got, rounded(x))
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(got[numbers], x[numbers].astype(BF16).view(np.uint16))
    assert np.isnan(got.view(BF16)[~numbers].astype(np.float32)).all()


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True, database=None)
@hypothesis.given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=64, max_size=64))
def test_any_float32_is_rounded(narrowing: Any, bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    result = tvm.runtime.tensor(np.zeros(64, BF16))
    narrowing["main"](tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy().view(np.uint16), rounded(x))


@pytest.fixture(scope="module")
def narrowing() -> Any:
    return compiled(scheduled(narrow, [((64,), "float32")]))


# ---- arithmetic on bfloat16 itself ----

X, Y, Z = "x", "y", "z"
ZERO = tirx.const(0.0, "bfloat16")
EXPRESSIONS: dict[str, tuple[Callable[..., Any], Callable[..., np.ndarray]]] = {
    "max": (tirx.max, np.maximum),
    "min": (tirx.min, np.minimum),
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "subtract": (lambda x, y: x - y, lambda x, y: x - y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "divide": (lambda x, y: x / y, lambda x, y: x / y),
    "relu of a sum": (lambda x, y: tirx.max(x + y, ZERO), lambda x, y: np.maximum(x + y, 0)),
    "clipped product": (
        lambda x, y: tirx.min(tirx.max(x * y, ZERO), tirx.const(6.0, "bfloat16")),
        lambda x, y: np.clip(x * y, 0, 6),
    ),
    "largest of a product and a number": (
        lambda x, y: tirx.max(tirx.min(x, y), x * y),
        lambda x, y: np.maximum(np.minimum(x, y), x * y),
    ),
    "if_then_else": (
        lambda x, y: tirx.if_then_else(x > y, x, tirx.const(1.5, "bfloat16")),
        lambda x, y: np.where(x > y, x, np.float32(1.5)),
    ),
    "if_then_else of arithmetic": (
        lambda x, y: tirx.if_then_else(x > y, x + y, x * y),
        lambda x, y: np.where(x > y, x + y, x * y),
    ),
    "Select": (
        lambda x, y: tirx.Select(x > y, y, ZERO),
        lambda x, y: np.where(x > y, y, np.float32(0)),
    ),
    "sum of a Select": (
        lambda x, y: tirx.Select(x > y, x, y) + y,
        lambda x, y: np.where(x > y, x, y) + y,
    ),
    "comparison of functions": (
        lambda x, y: tirx.Select(tirx.abs(x) > tirx.sqrt(y * y), x + y, ZERO),
        lambda x, y: np.where(np.abs(x) > np.sqrt(y * y), x + y, np.float32(0)),
    ),
    "function of a sum": (
        lambda x, y: tirx.sqrt(tirx.abs(x + y)),
        lambda x, y: np.sqrt(np.abs(x + y)),
    ),
    "largest of a function": (
        lambda x, y: tirx.max(tirx.exp(tirx.min(x, y)), x),
        lambda x, y: np.maximum(np.exp(np.minimum(x, y).astype("float64")).astype("float32"), x),
    ),
    "there and back": (
        lambda x, y: (x.astype("float32") * y.astype("float32")).astype("bfloat16"),
        lambda x, y: x * y,
    ),
    "there and back with an exp": (
        lambda x, y: tirx.exp(tirx.min(x, y).astype("float32")).astype("bfloat16"),
        lambda x, y: np.exp(np.minimum(x, y).astype("float64")).astype("float32"),
    ),
}
COUNT = 1024


def operands(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw values of all magnitudes, for which most sums and products must be rounded."""
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(COUNT) * 2.0 ** rng.integers(-3, 4, COUNT) for _ in "xy")
    y[:7] = [0.0, -0.0, 1.0, 1.5, 2.0, 3e38, 1e-30]
    return x.astype(BF16), y.astype(BF16)


def expected(name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = EXPRESSIONS[name][1](*(a.astype(np.float32) for a in operands()))
    return wide.astype(np.float32).astype(BF16).astype(np.float32)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_arithmetic_is_rounded_once(name: str, own: bool) -> None:
    """The result is stored to a buffer of the caller, or to an internal 16-bit buffer."""
    if own:
        func = kept_inside(name)
        assert 'T.sblock_alloc_buffer((1024,), "uint16")' in func.script()
    else:
        x, y = (te.placeholder((COUNT,), "bfloat16", name=n) for n in "xy")
        func = te.create_prim_func([x, y, elementwise(name, x, y)])
        func = schedule_function(func, ARCH).func
    got = call(func.with_attr("global_symbol", "main"), *operands())
    assert got.dtype == BF16
    np.testing.assert_array_equal(got.astype(np.float32), expected(name))


def elementwise(name: str, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    build = EXPRESSIONS[name][0]
    return te.compute((COUNT,), lambda i: build(x[i], y[i]), name="made")


def kept_inside(name: str) -> tirx.PrimFunc:
    """Store the expression in an internal buffer, and then move it."""
    x, y = (te.placeholder((COUNT,), "bfloat16", name=n) for n in "xy")
    made = elementwise(name, x, y)
    moved = te.compute((COUNT,), lambda i: tirx.if_then_else(i < COUNT, made[i], ZERO), name="out")
    return keep_bfloat16_bits(te.create_prim_func([x, y, moved]))


@pytest.mark.parametrize("function", [op.exp, op.sigmoid, op.tanh])
def test_functions_between_two_casts(function: Callable[..., relax.Expr]) -> None:
    """TVM rejects a cast of a Let that holds bfloat16."""
    numpy = {
        op.exp: np.exp, op.tanh: np.tanh, op.sigmoid: lambda x: 1 / (1 + np.exp(-x))
    }[function]  # fmt: skip
    x = np.linspace(-8, 8, 4096).astype(BF16)
    func = scheduled(lambda v: narrow(function(widen(v))), [(x.shape, "bfloat16")])
    assert "T.exp(" not in func.script() and "T.tanh(" not in func.script()
    right = numpy(x.astype(np.float64))
    got = call(func, x).astype(np.float64)
    assert (np.abs(got - right) <= 2.0**-8 * np.abs(right) * 1.001).all()


def test_softmax_of_bfloat16() -> None:
    """LLVM crashes on libm calls on bfloat16 vectors."""
    x = (np.random.default_rng(0).standard_normal((16, 64)) * 3).astype(BF16)
    func = scheduled(nn.softmax, [(x.shape, "bfloat16")])
    assert "bfloat16" not in buffers(func)
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True))
    right = e / e.sum(-1, keepdims=True)
    got = call(func, x).astype(np.float64)
    # Only the result is rounded: sums are in float32.
    assert (np.abs(got - right) <= 2.0**-8 * 1.001 * right).all()


# ---- buffers ----


def buffers(func: tirx.PrimFunc) -> list[str]:
    """Return the dtypes of the buffers that ``func`` allocates."""
    found: list[str] = []

    def on_block(block: s_tir.SBlock) -> None:
        found.extend(str(buffer.dtype) for buffer in block.alloc_buffers)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, on_block), order="post")
    return found


def test_padded_images_and_packed_weights_stay_16_bits_wide() -> None:
    """The producer pads the image of the first convolution; the second convolution pads its own."""

    def build(x: relax.Expr, v: relax.Expr, w: relax.Expr) -> relax.Expr:
        layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        y = nn.relu(nn.conv2d(narrow(nn.relu(x)), v, **layout))
        return nn.conv2d(y, w, padding=1, **layout)

    rng = np.random.default_rng(0)
    shapes = (1, 9, 9, 16), (1, 1, 16, 32), (3, 3, 32, 32)
    x, v, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    arrays = [x, v.astype(BF16), w.astype(BF16)]
    mod = lower(build, [(a.shape, str(a.dtype)) for a in arrays])
    scheduled_mod, rules = schedule_module(mod, ARCH)
    assert sorted(rules.values()) == ["elementwise", "register_tile", "register_tile"]
    own = [d for func in prim_funcs(scheduled_mod).values() for d in buffers(func)]
    assert "bfloat16" not in own
    assert own.count("uint16") == 3  # packed weights and padded image
    (got,), (want,) = (run(m, arrays) for m in (scheduled_mod, mod))
    want = want.astype(np.float32)
    assert np.abs(got.astype(np.float32) - want).max() <= 2e-2 * np.abs(want).max()


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 5, 7, 1), (1, 5, 7, 3)], ids=str)
def test_a_padded_image_may_have_one_channel(shape: tuple[int, ...]) -> None:
    """The vectorised index of the zeros is then not the last one."""
    mod = lower(lambda x: nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 0]), [(shape, "bfloat16")])
    [func] = prim_funcs(apply_template(mod, "elementwise")).values()
    x = np.random.default_rng(0).standard_normal(shape).astype(BF16)
    got = call(func.with_attr("global_symbol", "main"), x)
    want = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0)))
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_a_view_of_a_buffer_is_as_wide_as_the_buffer() -> None:
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((8, 8), "bfloat16"), y: T.Buffer((8, 8), "bfloat16")) -> None:
        own = T.sblock_alloc_buffer((8, 8), "bfloat16")
        for i, j in T.grid(8, 8):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                own[vi, vj] = x[vi, vj]
        for i in range(8):
            with T.sblock("row"):
                vi = T.axis.spatial(8, i)
                T.reads(own[vi, 0:8])
                T.writes(y[vi, 0:8])
                line = T.match_buffer(own[vi, 0:8], (8,), "bfloat16", offset_factor=1)
                for j in range(8):
                    with T.sblock("one"):
                        vj = T.axis.spatial(8, j)
                        y[vi, vj] = line[vj]

    script = keep_bfloat16_bits(func).script()
    assert 'own = T.sblock_alloc_buffer((8, 8), "uint16")' in script
    assert re.search(r'line = T.match_buffer\(own\[vi, 0:8\], \(8,\), "uint16"', script)
    x = EVERY[np.random.default_rng(0).integers(0, 1 << 16, 64)].reshape(8, 8)
    got = call(keep_bfloat16_bits(func).with_attr("global_symbol", "main"), x.view(BF16))
    np.testing.assert_array_equal(got.view(np.uint16), x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_what_has_no_bfloat16_is_unchanged(dtype: str) -> None:
    operands = [((1, 8, 9, 9), dtype), ((16, 8, 3, 3), dtype)]
    out = {"out_dtype": "int32"} if dtype == "int8" else {}
    mod = lower(lambda x, w: nn.conv2d(x, w, padding=1, **out), operands)
    for func in prim_funcs(mod).values():
        tvm.ir.assert_structural_equal(keep_bfloat16_bits(func), func)


def test_attributes_and_parameters_are_kept() -> None:
    [func] = prim_funcs(lower(narrow, [((64,), "float32")])).values()
    kept = keep_bfloat16_bits(func.with_attr("note", "kept"))
    assert kept.attrs["note"] == "kept"
    assert [str(p.dtype) for p in kept.params] == ["float32", "bfloat16"]


# ---- machine code ----


def kernel(func: tirx.PrimFunc) -> str:
    """Return the assembly of the function, without its argument checks."""
    assembly = compiled(func).inspect_source("asm")
    found = re.search(r"^main_compute_:$(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


VECTORS = {
    "widen": (widen, "bfloat16"),
    "narrow": (narrow, "float32"),
    "relu": (nn.relu, "bfloat16"),
    "add": (lambda x: op.add(x, x), "bfloat16"),
    "exp": (lambda x: narrow(op.exp(widen(x))), "bfloat16"),
}


@pytest.mark.skipif(not {"avx2"} <= host.cpu_flags(), reason="the mnemonics are AVX2's")
@pytest.mark.parametrize("name", VECTORS)
def test_machine_code_is_vectors_alone(name: str) -> None:
    """No lane is extracted or inserted, and no scalar is shifted."""
    build, dtype = VECTORS[name]
    code = kernel(scheduled(build, [((4096,), dtype)]))
    assert re.search(r"[yz]mm\d", code)
    apart = r"\b(vpextr\w|vpinsr\w|vmovd|vmovss|vpbroadcastw|shrl|shll|movzwl|callq?)\b"
    assert re.findall(apart, code) == []
