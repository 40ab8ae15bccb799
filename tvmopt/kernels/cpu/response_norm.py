"""One TensorIR function for LRN on a CPU; channels are innermost and fill the lanes.

::

    parallel for image row: for pixel:
        row[c] = x[c] ** 2                                        # float32, zeros around it
        scale[c] = bias + alpha / size * sum_k row[c - before + k]
        y[c] = x[c] / scale[c] ** beta
        if the sum of the scales is not finite: the pixel again, channel by channel

A row of squares stays in L1, and its windows are unaligned loads. A non-finite square leaves NaN in
the channels behind its windows (see :mod:`tvmopt.transform.response_norm`), which is rare. The sum
of the scales finds it.

With ``beta`` of 0.75, x86 needs neither square root nor division: ``rsqrt`` instructions and one
Newton step each give ``r = scale ** -0.5`` and ``q = r ** -0.5``; ``y = x * r * (r * q)``, within
2e-6. Two square roots and a division would occupy the divider of a Sapphire Rapids for 34 cycles
per 16 lanes, more than all 29 instructions of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics.llvm_functions import import_llvm
from tvmopt.kernels.cpu.passes.bfloat16_rounding import (
    has_rounding,
    rounded_vector,
    rounding_function,
)
from tvmopt.kernels.response_norm import ResponseNorm
from tvmopt.kernels.scheduled import OPAQUE

_WIDE = "float32"
# LLVM intrinsics of approximate inverse square roots, by lanes.
_ROOTS = {8: "llvm.x86.avx.rsqrt.ps.256", 16: "llvm.x86.avx512.rsqrt14.ps.512"}
_ROOT_BETA = 0.75
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000  # bits of a float32
_LEAST_BIAS = 1e-30  # the approximate root of a denormal number is infinite


def response_norm_kernel(
    norm: ResponseNorm, shape: Sequence[int], dtypes: tuple[str, str], arch: CpuArch
) -> tirx.PrimFunc:
    """Return the function of the input and the output.

    Args:
        norm: The LRN, along the last axis.
        shape: Shape of both.
        dtypes: Their dtypes: float32 or a 16-bit float.
        arch: The CPU.
    """
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        x = build.arg("x", build.buffer(tuple(shape), dtypes[0]))
        y = build.arg("y", build.buffer(tuple(shape), dtypes[1]))
        rows = _NormalisedRows(norm, tuple(shape), arch, x, y)
        rows.emit()
    func = builder.get()
    functions = [rounding_function(arch.lanes(_WIDE))] if rows.rounds else []
    # TVM looks for reshapes among functions of one tensor, and needs a root block.
    root = s_tir.SBlock([], [], [], "root", import_llvm(func.body, functions))
    return func.with_body(s_tir.SBlockRealize([], True, root))


class _NormalisedRows:
    def __init__(
        self,
        norm: ResponseNorm,
        shape: tuple[int, ...],
        arch: CpuArch,
        x: tirx.Buffer,
        y: tirx.Buffer,
    ) -> None:
        self._norm, self._x, self._y = norm, x, y
        self._channels, self._lanes = shape[-1], arch.lanes(_WIDE)
        self._outer = shape[:-1]
        # Whole vectors, so that the squares of channel 0 are aligned.
        self._before = -(-norm.before // self._lanes) * self._lanes
        self._by_roots = (
            arch.isa == "x86_64"
            and self._lanes in _ROOTS
            and norm.beta == _ROOT_BETA
            and norm.alpha >= 0
            and norm.bias >= _LEAST_BIAS
        )

        self.rounds = str(y.dtype) == "bfloat16" and self._by_roots and has_rounding(arch)

    def emit(self) -> None:
        tasks, pixels = math.prod(self._outer[:-1]), self._outer[-1]
        if len(self._outer) < 2:  # (N, C)
            tasks, pixels = pixels, 1
        size = self._before + self._channels + self._norm.after
        with build.parallel(tasks) as task:
            self._row = build.alloc_buffer((size,), _WIDE, scope="local")
            self._total = build.alloc_buffer((self._lanes,), _WIDE, scope="local")
            self._behind = build.alloc_buffer((1,), "int32", scope="local")
            self._scales, self._r, self._q = (
                build.alloc_buffer((self._lanes,), _WIDE, scope="local") for _ in range(3)
            )
            for start, count in (
                (0, self._before),
                (self._before + self._channels, self._norm.after),
            ):
                if count:
                    with build.serial(count) as c:
                        build.buffer_store(self._row, _float(0), [start + c])
            with build.serial(pixels) as pixel:
                self._pixel(self._place(task, pixel))

    def _place(self, task: Expr, pixel: Expr) -> list[Expr]:
        """Return the indices of a pixel."""
        if len(self._outer) < 2:
            return [task]
        place: list[Expr] = []
        for extent in reversed(self._outer[1:-1]):
            place.insert(0, task % extent)
            task = task // extent
        return [task, *place, pixel]

    def _pixel(self, place: list[Expr]) -> None:
        with build.vectorized(self._lanes) as lane:
            build.buffer_store(self._total, _float(0), [lane])

        def square(c: Expr, _: Expr) -> None:
            value = self._read(place, c)
            build.buffer_store(self._row, value * value, [self._before + c])

        def divide(c: Expr, lane: Expr) -> None:
            self._store(place, c, self._quotient(place, c))
            total = self._total[lane] + self._scale(c)
            build.buffer_store(self._total, total, [lane])

        self._each(0, square)
        by_roots = self._channels // self._lanes if self._by_roots else 0
        if by_roots:
            with build.serial(by_roots) as block:
                self._multiply_by_roots(place, tirx.Ramp(block * self._lanes, 1, self._lanes))
        self._each(by_roots * self._lanes, divide)
        total: Expr = self._total[0]
        for lane in range(1, self._lanes):
            total = total + self._total[lane]
        with build.If(_is_not_finite(total)), build.Then():
            self._again(place)

    def _again(self, place: list[Expr]) -> None:
        """Emit a pixel channel by channel: NaN behind the windows of a non-finite square."""
        build.buffer_store(self._behind, tirx.const(0, "int32"), [0])
        with build.serial(self._channels) as c:
            left = c - self._norm.before - 1  # the last channel before the window
            with build.If(left >= 0), build.Then():
                lost = _is_not_finite(self._row[self._before + left])
                behind = tirx.Select(lost, tirx.const(1, "int32"), self._behind[0])
                build.buffer_store(self._behind, behind, [0])
            value = tirx.Select(self._behind[0] > 0, _float(np.nan), self._quotient(place, c))
            self._store(place, c, value)

    def _multiply_by_roots(self, place: list[Expr], c: Expr) -> None:
        """Emit a vector of channels ``c`` by approximate roots."""
        lanes = tirx.Ramp(0, 1, self._lanes)
        scale, r, q = self._scales, self._r, self._q
        build.buffer_store(scale, self._scale(c), [lanes])
        self._newton(r, scale[lanes], lanes)
        self._newton(q, r[lanes], lanes)
        x = self._read(place, c)
        self._store(place, c, (x * r[lanes]) * (r[lanes] * q[lanes]))
        total = self._total[lanes] + scale[lanes]
        build.buffer_store(self._total, total, [lanes])

    def _newton(self, root: tirx.Buffer, value: Expr, lanes: Expr) -> None:
        """Store ``value ** -0.5``: an approximation and one Newton step."""
        name, kind = _ROOTS[self._lanes], f"{_WIDE}x{self._lanes}"
        more = (value, tirx.const(-1, "int16")) if "avx512" in name else ()
        build.buffer_store(root, tirx.call_llvm_pure_intrin(kind, name, value, *more), [lanes])
        at = root[lanes]
        error = self._constant(1.5) - value * self._constant(0.5) * at * at
        build.buffer_store(root, at * error, [lanes])

    def _constant(self, value: float) -> Expr:
        return tirx.Broadcast(_float(value), self._lanes)

    def _each(self, begun: int, body: Callable[[Expr, Expr], None]) -> None:
        """Emit ``body`` of a channel and its lane, for channels from ``begun`` on, vectorised."""
        for count, length in _vectors(self._channels - begun, self._lanes):
            with build.serial(count) as block, build.vectorized(length) as lane:
                body(begun + block * length + lane, lane)
            begun += count * length

    def _read(self, place: list[Expr], c: Expr) -> Expr:
        value = self._x[(*place, c)]
        return value if str(self._x.dtype) == _WIDE else tirx.Cast(_like(_WIDE, c), value)

    def _store(self, place: list[Expr], c: Expr, value: Expr) -> None:
        dtype = str(self._y.dtype)
        if isinstance(c, tirx.Ramp) and self.rounds:
            value = rounded_vector(value, self._lanes)
        elif dtype != _WIDE:
            value = tirx.Cast(_like(dtype, c), value)
        build.buffer_store(self._y, value, [*place, c])

    def _scale(self, c: Expr) -> Expr:
        """Return what is raised to ``beta``, of a channel or a vector of channels."""
        first = self._before - self._norm.before
        total: Expr = self._row[_moved(c, first)]
        for k in range(1, self._norm.size):
            total = total + self._row[_moved(c, first + k)]
        alpha, bias = self._norm.alpha / self._norm.size, self._norm.bias
        if isinstance(c, tirx.Ramp):
            return total * self._constant(alpha) + self._constant(bias)
        return total * _float(alpha) + _float(bias)

    def _quotient(self, place: list[Expr], c: Expr) -> Expr:
        return self._read(place, c) / tirx.pow(self._scale(c), _float(self._norm.beta))


def _vectors(extent: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Yield counts and lengths of vectors that cover ``extent``: 23 is 1 x 16, 1 x 4, 1 x 2, 1."""
    while extent:
        if count := extent // lanes:
            yield count, lanes
        extent %= lanes
        lanes //= 2


def _moved(c: Expr, by: int) -> Expr:
    return tirx.Ramp(c.base + by, c.stride, c.lanes) if isinstance(c, tirx.Ramp) else c + by


def _like(dtype: str, c: Expr) -> str:
    """Return ``dtype`` with the lanes of ``c``."""
    return f"{dtype}x{int(c.lanes)}" if isinstance(c, tirx.Ramp) else dtype


def _is_not_finite(value: Expr) -> Expr:
    """Test the bits: TVM negates comparisons of floats as if no value was NaN."""
    bits = tirx.reinterpret("uint32", value) & tirx.const(_MAGNITUDE, "uint32")
    return bits >= tirx.const(_INFINITY, "uint32")


def _float(value: float) -> Expr:
    return tirx.const(value, _WIDE)
