"""Requantize by magic-number rounding: equal to NumPy for any input, zero point and clip."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
import tvm
from hypothesis import strategies as st
from tvm import relax, te, tirx

from tests.kernels.cpu.harness import ARCH, TARGET, lower, prim_funcs
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.passes.requantise import rewrite_requantise
from tvmopt.kernels.emit import emit
from tvmopt.kernels.first_choice import schedule_function

op = relax.op
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclasses.dataclass(frozen=True)
class Requantise:
    """``Cast(dtype, max(min(round(x) + zero, high), low))``; a bound that is None is no clip.

    Attributes:
        dtype: The 8-bit dtype.
        zero: Zero point.
        low: Lower bound of the clip.
        high: Upper bound.
        again: Scale of a later dequantize; 0 for no dequantize.
    """

    dtype: str = "uint8"
    zero: float = 0.0
    low: float | None = 0.0
    high: float | None = 255.0
    again: float = 0.0

    def expression(self, x: Any) -> Any:
        y = tirx.nearbyint(x)
        if self.zero:
            y = y + tirx.const(self.zero, "float32")
        if self.high is not None:
            y = tirx.min(y, tirx.const(self.high, "float32"))
        if self.low is not None:
            y = tirx.max(y, tirx.const(self.low, "float32"))
        y = y.astype(self.dtype)
        return y.astype("float32") * tirx.const(self.again, "float32") if self.again else y

    def numpy(self, x: np.ndarray) -> np.ndarray:
        y = np.rint(x) + np.float32(self.zero)
        y = np.clip(y, self.low, self.high).astype(self.dtype)
        return y.astype("float32") * np.float32(self.again) if self.again else y

    def function(self, count: int = 64) -> tirx.PrimFunc:
        x = te.placeholder((count,), "float32", name="x")
        y = te.compute((count,), lambda i: self.expression(x[i]), name="y")
        return te.create_prim_func([x, y])


def run(func: tirx.PrimFunc, x: np.ndarray) -> np.ndarray:
    """``func`` in vectors, as a template leaves it."""
    scheduled = emit(func, UnmodelledConfig("elementwise", ARCH)).mod["main"]
    done = finish(scheduled, func).with_attr("global_symbol", "main")
    assert "T.vectorized" in done.script()
    lib = tvm.tirx.build(tvm.IRModule({"main": done}), target=TARGET)
    result = tvm.runtime.tensor(np.full(x.shape, 77, str(func.params[-1].dtype)))
    lib["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


def numbers() -> np.ndarray:
    """Ties and their neighbours, both ends of the exact range, and values far out of range."""
    ties = np.arange(-700, 700).astype("float32") / 2
    ends = np.float32([2**21, 2**22 - 0.5, 2**22, 2**22 + 0.5, 2**23 - 0.5, 2**23, 2**24 + 2, 1e9])
    far = np.float32([2**31, 3e18, np.finfo("float32").max, np.inf, 1e-45, 1e-38, 0.0])
    found = np.concatenate([ties, ends, far])
    up, down = (np.nextafter(found, np.float32(to)) for to in (np.inf, -np.inf))
    found = np.concatenate([found, up, down])
    found = np.concatenate([found, -found])
    return np.resize(found, -(-len(found) // 64) * 64)


ZEROS = [0.0, 3.0, 128.0, 255.0, -1.0, -128.0, 127.0, 64.0]
CLIPS: dict[str, list[tuple[float, float]]] = {
    "uint8": [(0, 255), (3, 255), (0, 131), (7, 8)],
    "int8": [(-128, 127), (-127, 127), (0, 127), (-13, 40)],
}
EXACT = [
    Requantise(dtype, zero, low, high)
    for dtype, clips in CLIPS.items()
    for low, high in clips
    for zero in (ZEROS if (low, high) == clips[0] else ZEROS[:2])
]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_bytes_are_those_of_numpy(case: Requantise) -> None:
    func = case.function(len(numbers()))
    assert "nearbyint" not in rewrite_requantise(func).script()
    np.testing.assert_array_equal(run(func, numbers()), case.numpy(numbers()))


@pytest.mark.parametrize("zero", [0.0, 3.0, 128.0])
@pytest.mark.parametrize("dtype", RANGES)
def test_a_byte_that_becomes_a_float_again(dtype: str, zero: float) -> None:
    low, high = RANGES[dtype]
    case = Requantise(dtype, zero, low, high, again=0.37)
    func = case.function(len(numbers()))
    rewritten = rewrite_requantise(func).script()
    # TVM vectorises no loop that calls nearbyint
    assert f'Cast("{dtype}"' not in rewritten and "nearbyint" not in rewritten
    np.testing.assert_array_equal(run(func, numbers()), case.numpy(numbers()))


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(drawn=st.data(), dtype=st.sampled_from(sorted(RANGES)))
def test_any_clip_zero_point_and_number(drawn: st.DataObject, dtype: str) -> None:
    least, most = RANGES[dtype]
    low = drawn.draw(st.integers(least, most))
    high = drawn.draw(st.integers(low, most))
    zero = drawn.draw(st.integers(-300, 300))
    case = Requantise(dtype, zero, low, high, again=drawn.draw(st.sampled_from([0.0, 0.25])))
    near = st.floats(low - zero - 2, high - zero + 2, width=32)
    one = st.one_of(near, near.map(lambda x: np.floor(x) + 0.5), st.floats(-1e9, 1e9, width=32))
    x = np.float32(drawn.draw(st.lists(one, min_size=64, max_size=64)))
    np.testing.assert_array_equal(run(case.function(), x), case.numpy(x))


LEFT_ALONE = {
    "no clip": Requantise(low=None, high=None),
    "no upper bound": Requantise(high=None),
    "no lower bound": Requantise(low=None),
    "an infinite bound": Requantise(high=float("inf")),
    "a lower bound that is not whole": Requantise(low=0.5),
    "an upper bound that is not whole": Requantise(high=254.5),
    "a zero point that is not whole": Requantise(zero=0.5),
    "nothing whole, whole together": Requantise(zero=0.5, low=0.5, high=100.5),
    "a bound beyond exactness": Requantise(high=2.0**23),
    "a wider integer": Requantise(dtype="int16"),
}


@pytest.mark.parametrize("case", LEFT_ALONE.values(), ids=list(LEFT_ALONE))
@pytest.mark.parametrize("again", [0.0, 0.5])
def test_left_alone(case: Requantise, again: float) -> None:
    func = dataclasses.replace(case, again=again).function()
    tvm.ir.assert_structural_equal(rewrite_requantise(func), func)


@pytest.mark.parametrize("bounds", [(-300.0, 300.0), (0.0, 256.0), (-1.0, 255.0)])
def test_a_byte_that_a_clip_does_not_hold_is_made(bounds: tuple[float, float]) -> None:
    """The cast wraps around, and magic-number rounding would not."""
    script = rewrite_requantise(Requantise("uint8", 0, *bounds, again=0.5).function()).script()
    assert 'T.Cast("float32", T.Cast("uint8"' in script


def test_a_zero_point_beyond_exactness_is_left_alone() -> None:
    func = Requantise(zero=2.0**23).function()
    tvm.ir.assert_structural_equal(rewrite_requantise(func), func)


@pytest.mark.parametrize("rounding", [tirx.floor, tirx.ceil, tirx.trunc, tirx.round])
def test_other_roundings_are_left_alone(rounding: Callable[[Any], Any]) -> None:
    x = te.placeholder((64,), "float32", name="x")

    def value(i: Any) -> Any:
        top = tirx.min(rounding(x[i]), tirx.const(255.0, "float32"))
        return tirx.max(top, tirx.const(0.0, "float32")).astype("uint8")

    func = te.create_prim_func([x, te.compute((64,), value, name="y")])
    tvm.ir.assert_structural_equal(rewrite_requantise(func), func)


def test_attributes_are_kept() -> None:
    func = Requantise().function().with_attr("tirx.noalias", True).with_attr("note", "kept")
    assert rewrite_requantise(func).attrs["note"] == "kept"


def quantised(x: relax.Expr, scale: float, zero: float) -> relax.Expr:
    y = op.round(op.multiply(x, relax.const(np.float32(scale))))
    return op.astype(op.clip(op.add(y, relax.const(np.float32(zero))), 0, 255), "uint8")


def dequantised(x: relax.Expr, scale: float, zero: float) -> relax.Expr:
    y = op.subtract(op.astype(x, "float32"), relax.const(np.float32(zero)))
    return op.multiply(y, relax.const(np.float32(scale)))


def residual(a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """A residual block: requantize the accumulator, add the residual, and requantize."""
    first = dequantised(quantised(a, 0.013, 7), 0.25, 7)
    return quantised(op.add(first, dequantised(b, 0.5, 12)), 0.9, 3)


def test_the_end_of_a_residual_block() -> None:
    """Both roundings are additions; the first value stays a float32."""
    operands = [((4096,), "float32"), ((4096,), "uint8")]
    [func] = prim_funcs(lower(residual, operands)).values()
    done = schedule_function(func, ARCH).func.with_attr("global_symbol", "main")
    script = done.script()
    assert "T.nearbyint(" not in script
    assert script.count("T.Cast(") == 3
    assert script.count('T.Cast("uint8", T.reinterpret("uint32"') == 1
    assert script.count('T.Cast("float32", T.reinterpret("int32"') == 1
    assert script.count('T.Cast("float32", x1[') == 1

    rng = np.random.default_rng(0)
    a = rng.standard_normal(4096, np.float32) * np.float32(1e4)
    b = rng.integers(0, 256, 4096, np.uint8)
    lib = tvm.tirx.build(tvm.IRModule({"main": done}), target=TARGET)
    result = tvm.runtime.tensor(np.zeros(4096, np.uint8))
    lib["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)

    def bytes_of(x: np.ndarray, scale: float, zero: float) -> np.ndarray:
        return np.clip(np.rint(x * np.float32(scale)) + np.float32(zero), 0, 255).astype("uint8")

    def floats_of(x: np.ndarray, scale: float, zero: float) -> np.ndarray:
        return (x.astype("float32") - np.float32(zero)) * np.float32(scale)

    want = bytes_of(floats_of(bytes_of(a, 0.013, 7), 0.25, 7) + floats_of(b, 0.5, 12), 0.9, 3)
    assert len(np.unique(want)) > 40
    np.testing.assert_array_equal(result.numpy(), want)
