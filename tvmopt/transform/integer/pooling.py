"""Rules for averages: accumulate in int32, and fold the division into the scale.

before -> after: ``mean(scale * (x - z))`` -> ``scale / n * (sum(astype(x, int32)) - n * z)``.
A pooling window is summed as shifted slices of its input, which TVM fuses into one kernel. TVM has
no integer sum pooling, and its integer average pooling rounds towards zero.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from tvm import relax

from tvmopt.device.dtypes import BYTE_INTEGERS
from tvmopt.transform.integer.context import Context, RuleResult, output_shape
from tvmopt.transform.integer.values import Linear, Term, with_rank

_LARGEST_WINDOW = 25


def mean(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """``mean`` and ``sum`` over some axes."""
    data, shape = _bytes(ctx, call.args[0]), output_shape(call)
    if data is None or shape is None:
        return None
    rank = len(data.shape)
    axes = range(rank) if call.attrs.axis is None else call.attrs.axis
    return _total(
        ctx, data, shape, sorted({int(a) % rank for a in axes}),
        keepdims=bool(call.attrs.keepdims), divide=call.op.name == "relax.mean",
    )  # fmt: skip


def adaptive_average(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Adaptive average pooling with windows of equal size."""
    data, shape = _bytes(ctx, call.args[0]), output_shape(call)
    if data is None or shape is None or not str(call.attrs.layout).startswith("NC"):
        return None
    sizes, outs = data.shape[2:], shape[2:]
    if any(size % out for size, out in zip(sizes, outs, strict=True)):
        return None
    window = [size // out for size, out in zip(sizes, outs, strict=True)]
    if all(out == 1 for out in outs):
        return _total(ctx, data, shape, list(range(2, len(shape))), keepdims=True, divide=True)
    return _average(ctx, data, shape, window, window, [0] * 2 * len(window), [1] * len(window))


def average(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Average pooling over windows of at most 25 elements."""
    data, shape = _bytes(ctx, call.args[0]), output_shape(call)
    attrs = call.attrs
    if data is None or shape is None or not str(attrs.layout).startswith("NC"):
        return None
    lists = [[int(v) for v in v_] for v_ in (attrs.pool_size, attrs.strides, attrs.padding)]
    window, strides, padding = lists
    dilation = [int(d) for d in attrs.dilation]
    return _average(
        ctx, data, shape, window, strides, padding, dilation,
        count_padding=bool(attrs.count_include_pad),
    )  # fmt: skip


def _bytes(ctx: Context, arg: relax.Expr) -> Linear | None:
    data = ctx.quantised(arg)
    return data if data is not None and data.terms[0].dtype in BYTE_INTEGERS else None


def _total(
    ctx: Context,
    data: Linear,
    shape: tuple[int, ...],
    axes: list[int],
    *,
    keepdims: bool,
    divide: bool,
) -> Linear | None:
    count = math.prod(data.shape[a] for a in axes)
    if not 0 < count < 2**31 // 256:  # range of int32
        return None
    term = data.terms[0]
    wide = ctx.emitter.emit(relax.op.astype(term.tensor, "int32"))
    total = ctx.emitter.emit(relax.op.sum(wide, axes, keepdims=keepdims))
    scale = np.asarray(term.scale / np.float32(count if divide else 1), np.float32)
    return Linear((Term(total, scale, np.asarray(term.shift * count, np.int32)),), shape)


def _average(
    ctx: Context,
    data: Linear,
    shape: tuple[int, ...],
    window: list[int],
    strides: list[int],
    padding: list[int],
    dilation: list[int],
    *,
    count_padding: bool = False,
) -> Linear | None:
    size = math.prod(window)
    if size > _LARGEST_WINDOW or len(shape) != 2 + len(window):
        return None
    term = data.terms[0]
    zero = -int(term.shift)
    before, after = padding[: len(window)], padding[len(window) :]
    # Extent of the last window; ceil mode may have added a window.
    reach = [
        (out - 1) * stride + (k - 1) * d + 1
        for out, stride, k, d in zip(shape[2:], strides, window, dilation, strict=True)
    ]
    extra = [max(0, r - b - n) for r, b, n in zip(reach, before, data.shape[2:], strict=True)]
    if count_padding and any(e > a for e, a in zip(extra, after, strict=True)):
        return None  # windows beyond the padding: frameworks differ in the divisor
    tensor = term.tensor
    if any(before) or any(extra):
        widths = [0, 0, 0, 0]
        for b, e in zip(before, extra, strict=True):
            widths += [b, e]
        tensor = ctx.emitter.emit(relax.op.nn.pad(tensor, widths, pad_value=float(zero)))
    wide = ctx.emitter.emit(relax.op.astype(tensor, "int32"))
    axes = list(range(2, len(shape)))
    total: relax.Expr | None = None
    for corner in itertools.product(*(range(k) for k in window)):
        begin = [c * d for c, d in zip(corner, dilation, strict=True)]
        end = [b + (out - 1) * s + 1 for b, out, s in zip(begin, shape[2:], strides, strict=True)]
        part = ctx.emitter.emit(relax.op.strided_slice(wide, axes, begin, end, strides))
        total = part if total is None else ctx.emitter.emit(relax.op.add(total, part))
    assert total is not None
    counts = np.full((), size, np.float32)
    if not count_padding:
        counts = with_rank(
            _counts(data.shape[2:], shape[2:], window, strides, before, dilation), len(shape)
        )
        if counts.ndim and (counts == counts.flat[0]).all():
            counts = counts.reshape(-1)[0].reshape(())
    scale = np.asarray(term.scale / counts, np.float32)
    return Linear((Term(total, scale, np.asarray(term.shift * size, np.int32)),), shape)


def _counts(
    sizes: tuple[int, ...],
    outs: tuple[int, ...],
    window: list[int],
    strides: list[int],
    before: list[int],
    dilation: list[int],
) -> np.ndarray:
    """Return how many elements of each window lie inside the input."""
    counts = np.ones((), np.float32)
    for n, out, k, s, b, d in zip(sizes, outs, window, strides, before, dilation, strict=True):
        starts = np.arange(out)[:, None] * s - b
        taps = starts + np.arange(k)[None, :] * d
        inside = ((taps >= 0) & (taps < n)).sum(axis=1).astype(np.float32)
        counts = counts[..., None] * inside
    return np.maximum(counts, 1)
