"""Legalize max pooling of 16-bit floats on a CPU with comparisons in float32.

before -> after, 3 x 3, padded by 1::

    P = pad(x, 1, -max); m[y, x, c] = max(m[y, x, c], P[y + ky, x + kx, c])      # bfloat16

    E[y, x, c] = x[clamp(y - 1, 0, H - 1), clamp(x - 1, 0, W - 1), c]            # bfloat16
    m[y, x, c] = max(m[y, x, c], cast(E[y + ky, x + kx, c]))                     # float32
    Y[y, x, c] = the upper 16 bits of m[y, x, c]                                 # bfloat16

TVM compares bfloat16 by converting both operands of each comparison, and selects among 16-bit
values: four times as many instructions. The maximum is one of the values, so nothing is rounded.

The clamped index reads an element of the same window once more, next to its other read, instead of
padding. This changes no result, also not of windows with NaN, whose last NaN is what counts (see
:mod:`tvmopt.kernels.passes.keep_nan`). A kernel inlines ``E``: clamps are scalar and need no branch
and no padded copy. They suit channels in the last dimension. Other layouts are padded and cast to
float32 before pooling: ``cast(max_pool2d(cast(x, float32)), bfloat16)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.target import Target

from tvmopt.device.cpu_of_target import cpu_of_target
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.wide_sums import in_float32

_POOLS = {
    "relax.nn.max_pool1d": topi.nn.pool1d,
    "relax.nn.max_pool2d": topi.nn.pool2d,
    "relax.nn.max_pool3d": topi.nn.pool3d,
}
# LLVM flags of CPUs that compare float16.
_FLOAT16_FLAGS = frozenset({"avx512fp16", "fullfp16", "zvfh"})
_UPPER = 16  # bits of a float32 that its bfloat16 drops


def wide_pools(target: Target) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Return the legalization map by operator; dtypes that the CPU compares use TVM's.

    Args:
        target: A CPU: all compare bfloat16 in float32, and those without float16 arithmetic
            float16, too.
    """
    narrow = {"bfloat16"}
    if target.kind.name == "llvm" and not cpu_of_target(target).features() & _FLOAT16_FLAGS:
        narrow.add("float16")
    return {name: functools.partial(_legalize, pool, narrow) for name, pool in _POOLS.items()}


def _legalize(
    pool: Callable[..., te.Tensor], narrow: set[str], builder: relax.BlockBuilder, call: relax.Call
) -> relax.Expr:
    [data], attrs = call.args, call.attrs
    if str(data.ty.dtype) not in narrow or attrs.out_layout != attrs.layout:
        return call.op.get_attr("FLegalize")(builder, call)
    windows = _windows(call)
    if windows is not None:
        hint = call.op.name.removeprefix("relax.nn.")
        compute = functools.partial(_clamped, windows=windows)
        return builder.call_te(compute, data, primfunc_name_hint=hint)

    def pooled(x: te.Tensor) -> te.Tensor:
        return pool(
            x,
            kernel=attrs.pool_size,
            stride=attrs.strides,
            dilation=attrs.dilation,
            padding=attrs.padding,
            pool_type="max",
            ceil_mode=attrs.ceil_mode,
            layout=attrs.layout,
        )

    return in_float32(builder, call, pooled)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Pooling windows along one axis of the image; each contains an element of the image.

    Attributes:
        extent: Elements of the image.
        count: Number of windows.
        size: Elements of a window.
        stride: Step between windows.
        dilation: Step between the elements of a window.
        before: Padding before the image.
    """

    extent: int
    count: int
    size: int
    stride: int
    dilation: int
    before: int

    @property
    def span(self) -> int:
        """Elements of the padded image that the windows read."""
        return (self.count - 1) * self.stride + (self.size - 1) * self.dilation + 1

    @property
    def padded(self) -> bool:
        """Whether a window leaves the image."""
        return self.before > 0 or self.span > self.extent

    @property
    def clamps(self) -> bool:
        """Whether each window that leaves the image contains the element at the image's edge."""
        first = self.before < self.size
        last = (self.count - 1) * self.stride - self.before < self.extent
        return not self.padded or (self.dilation == 1 and first and last)


def _windows(call: relax.Call) -> list[_Windows] | None:
    """Return the windows along each axis of an image (N, ..., C); None if indices cannot clamp."""
    [data], attrs = call.args, call.attrs
    shape, result = static_shape(data), static_shape(call)
    if shape is None or result is None or not str(attrs.layout).endswith("C"):
        return None
    axes = len(shape) - 2
    found = [
        _Windows(*(int(value) for value in values))
        for values in zip(
            shape[1:-1],
            result[1:-1],
            attrs.pool_size,
            attrs.strides,
            attrs.dilation,
            list(attrs.padding)[:axes],
            strict=True,
        )
    ]
    return found if all(axis.clamps for axis in found) else None


def _clamped(x: te.Tensor, windows: list[_Windows]) -> te.Tensor:
    """Return the maxima over ``windows`` of ``x``, (N, ..., C), in the dtype of ``x``."""
    batch, *_, channels = x.shape
    data = x
    if any(axis.padded for axis in windows):

        def edge(n: Any, *place: Any) -> Any:
            inside = [
                tirx.max(tirx.min(i - axis.before, axis.extent - 1), 0) if axis.padded else i
                for i, axis in zip(place[:-1], windows, strict=True)
            ]
            return x[(n, *inside, place[-1])]

        data = te.compute((batch, *(axis.span for axis in windows), channels), edge, "edge")
    taps = [te.reduce_axis((0, axis.size), "tap") for axis in windows]

    def maximum(n: Any, *place: Any) -> Any:
        read = [
            i * axis.stride + tap * axis.dilation
            for i, tap, axis in zip(place[:-1], taps, windows, strict=True)
        ]
        return te.max(data[(n, *read, place[-1])].astype("float32"), axis=taps)

    most = te.compute((batch, *(axis.count for axis in windows), channels), maximum, "pool_max")
    if str(x.dtype) != "bfloat16":
        return topi.cast(most, x.dtype)

    def upper(*place: Any) -> Any:
        bits = tirx.reinterpret("uint32", most(*place)) >> tirx.const(_UPPER, "uint32")
        return tirx.reinterpret("bfloat16", bits.astype("uint16"))

    return te.compute(most.shape, upper, "upper")
