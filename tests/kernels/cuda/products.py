"""GEMMs and convolutions as TensorIR functions, with their reference results in NumPy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import te, tirx

_SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A GEMM; ``layout`` says for each operand whether it is transposed."""

    layout: str
    rows: int
    columns: int
    depth: int
    dtype: str = "float32"
    out: str = ""
    batch: int = 1
    bias: bool = False
    other: str = ""

    def shapes(self) -> list[tuple[int, ...]]:
        a = (self.rows, self.depth) if self.layout[0] == "n" else (self.depth, self.rows)
        b = (self.depth, self.columns) if self.layout[1] == "n" else (self.columns, self.depth)
        batch = (self.batch,) if self.batch > 1 else ()
        return [(*batch, *a), (*batch, *b), (*batch, self.rows, self.columns)]

    def func(self) -> tirx.PrimFunc:
        shape_a, shape_b, shape = self.shapes()
        sums = _SUMS.get(self.dtype, self.dtype)
        out = self.out or self.dtype
        a = te.placeholder(shape_a, self.dtype, "A")
        b = te.placeholder(shape_b, self.other or self.dtype, "B")
        k = te.reduce_axis((0, self.depth), "k")

        def element(*at: Any) -> Any:
            *s, i, j = at
            x = a[(*s, i, k)] if self.layout[0] == "n" else a[(*s, k, i)]
            y = b[(*s, k, j)] if self.layout[1] == "n" else b[(*s, j, k)]
            return te.sum(x.astype(sums) * y.astype(sums), axis=[k])

        return _finish(te.compute(shape, element, "C"), [a, b], out, -1, self.bias)

    def numpy(self, arrays: list[np.ndarray]) -> np.ndarray:
        a, b = (x.astype("float64") for x in arrays[:2])
        a = a if self.layout[0] == "n" else np.swapaxes(a, -1, -2)
        b = b if self.layout[1] == "n" else np.swapaxes(b, -1, -2)
        return _finished(a @ b, arrays, self.bias, -1)


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution in ``layout`` ``"NHWC"``, ``"HWNC"`` or ``"NCHW"``."""

    layout: str
    batch: int
    size: int
    channels: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    dtype: str = "float32"
    out: str = ""
    bias: bool = False

    @property
    def out_size(self) -> int:
        reach = self.dilation * (self.kernel - 1)
        return (self.size + 2 * self.padding - reach - 1) // self.stride + 1

    def shapes(self) -> list[tuple[int, ...]]:
        kernel = (self.kernel, self.kernel, self.channels, self.outputs)
        if self.layout == "NCHW":
            kernel = (self.outputs, self.channels, self.kernel, self.kernel)
        image = (self.batch, self.size, self.size, self.channels)
        result = (self.batch, self.out_size, self.out_size, self.outputs)
        return [self._put(image), kernel, self._put(result)]

    def _put(self, nhwc: Any) -> Any:
        n, h, w, c = nhwc
        return {"NHWC": (n, h, w, c), "HWNC": (h, w, n, c), "NCHW": (n, c, h, w)}[self.layout]

    def _get(self, at: Any) -> Any:
        p, q, r, s = at
        orders = {"NHWC": (p, q, r, s), "HWNC": (r, p, q, s), "NCHW": (p, r, s, q)}
        return orders[self.layout]

    def func(self) -> tirx.PrimFunc:
        shape, kernel_shape, out_shape = self.shapes()
        sums = _SUMS.get(self.dtype, self.dtype)
        x, w = te.placeholder(shape, self.dtype, "X"), te.placeholder(kernel_shape, self.dtype, "W")
        p, size = self.padding, self.size

        def padded(*at: Any) -> Any:
            n, y, z, c = self._get(at)
            inside = tirx.all(y >= p, y < size + p, z >= p, z < size + p)
            value = x[self._put((n, y - p, z - p, c))]
            return tirx.if_then_else(inside, value, tirx.const(0, self.dtype))

        image = x
        if p:
            whole = self._put((self.batch, size + 2 * p, size + 2 * p, self.channels))
            image = te.compute(whole, padded, "pad")
        ry, rx = (te.reduce_axis((0, self.kernel), name) for name in ("ry", "rx"))
        rc = te.reduce_axis((0, self.channels), "rc")

        def element(*at: Any) -> Any:
            n, y, z, o = self._get(at)
            y = y * self.stride + ry * self.dilation
            z = z * self.stride + rx * self.dilation
            tap = w[(o, rc, ry, rx)] if self.layout == "NCHW" else w[(ry, rx, rc, o)]
            product = image[self._put((n, y, z, rc))].astype(sums) * tap.astype(sums)
            return te.sum(product, axis=[ry, rx, rc])

        channel = 1 if self.layout == "NCHW" else -1
        out = self.out or self.dtype
        return _finish(te.compute(out_shape, element, "C"), [x, w], out, channel, self.bias)

    def numpy(self, arrays: list[np.ndarray]) -> np.ndarray:
        x, w = (a.astype("float64") for a in arrays[:2])
        x = {"NHWC": x, "HWNC": np.transpose(x, (2, 0, 1, 3))}.get(
            self.layout, np.transpose(x, (0, 2, 3, 1))
        )
        w = np.transpose(w, (2, 3, 1, 0)) if self.layout == "NCHW" else w
        p, s, d, n = self.padding, self.stride, self.dilation, self.out_size
        x = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        out = np.zeros((self.batch, n, n, self.outputs))
        for r in range(self.kernel):
            for q in range(self.kernel):
                y, z = r * d, q * d
                part = x[:, y : y + (n - 1) * s + 1 : s, z : z + (n - 1) * s + 1 : s]
                out += part @ w[r, q]
        if self.layout != "NHWC":
            out = np.transpose(out, (1, 2, 0, 3) if self.layout == "HWNC" else (0, 3, 1, 2))
        return _finished(out, arrays, self.bias, 1 if self.layout == "NCHW" else -1)


def _finish(c: Any, args: list[Any], out: str, channel: int, bias: bool) -> tirx.PrimFunc:
    result = c
    if str(c.dtype) != out:
        result = te.compute(c.shape, lambda *at: c[at].astype(out), "cast")
    if bias:
        b, before = te.placeholder((c.shape[channel],), out, "bias"), result
        added = te.compute(c.shape, lambda *at: before[at] + b[at[channel]], "added")
        zero = tirx.const(0, out)
        result = te.compute(c.shape, lambda *at: tirx.max(added[at], zero), "relu")
        args = [*args, b]
    return te.create_prim_func([*args, result])


def _finished(c: np.ndarray, arrays: list[np.ndarray], bias: bool, channel: int) -> np.ndarray:
    if not bias:
        return c
    b = arrays[2].astype("float64")
    return np.maximum(c + (b[:, None, None] if channel == 1 else b), 0.0)


def inputs(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Draw all arguments of ``func`` except the last."""
    rng = np.random.default_rng(seed)
    made = []
    for param in func.params[:-1]:
        shape, dtype = tuple(int(e) for e in param.shape), str(param.dtype)
        if "int" in dtype:
            low, high = (0, 256) if dtype == "uint8" else (-100, 100)
            made.append(rng.integers(low, high, shape).astype(dtype))
        else:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            made.append(rng.standard_normal(shape).astype(kind))
    return made


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of the expected result."""
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found.astype("float64") - expected)) / max(norm, 1e-30)


def work(case: Case | Conv) -> int:
    """Return the number of multiply-adds."""
    *_, out = case.shapes()
    depth = case.depth if isinstance(case, Case) else case.kernel**2 * case.channels
    return math.prod(out) * depth


def module(func: tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func})
