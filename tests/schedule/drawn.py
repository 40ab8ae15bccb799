"""Functions drawn at random: what :mod:`tests.schedule.test_templates` holds every template to.

Each comes with what NumPy, in float64, says that it computes. Shapes are small, ragged and prime.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

op, nn = relax.op, relax.op.nn
Draw = Callable[[st.SearchStrategy[Any]], Any]

#: Channels: single, few, ragged and whole against 8 and 16 lanes, one longer than a register tile.
CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 40, 67])
SIZES = st.integers(1, 13)


@dataclasses.dataclass(frozen=True)
class Operand:
    """An argument; ``constant`` ones are weights, known when a model is built."""

    shape: tuple[int, ...]
    constant: bool = False
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, repr=False)
class Drawn:
    """A few operators.

    Attributes:
        text: What it is, for the report of a failure.
        operands: Its arguments.
        build: Gives the result from relax variables.
        numpy: The same from arrays of float64; None where TVM's own form is the only reference.
        coarse: Whether inputs are rounded, so that equal ones occur.
    """

    text: str
    operands: tuple[Operand, ...]
    build: Callable[..., relax.Expr]
    numpy: Callable[..., np.ndarray] | None
    coarse: bool = False

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, o.shape)) for o in self.operands)
        return f"<{self.text} of {shapes}>"


# --- epilogues -----------------------------------------------------------------------------------


def _sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def _hard_swish(y: Any) -> Any:
    return op.multiply(y, op.divide(op.clip(op.add(y, relax.const(3.0)), 0, 6), relax.const(6.0)))


_UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "none": (lambda y: y, lambda y: y),
    "relu": (nn.relu, lambda y: np.maximum(y, 0)),
    "clip": (lambda y: op.clip(y, -0.5, 1.5), lambda y: np.clip(y, -0.5, 1.5)),
    "sigmoid": (op.sigmoid, _sigmoid),
    "hard_swish": (_hard_swish, lambda y: y * np.clip(y + 3, 0, 6) / 6),
    "float16": (lambda y: op.astype(y, "float16"), lambda y: y),
}
EPILOGUES = [
    "none", "bias", "bias_relu", "bias_residual_relu", "clip", "sigmoid", "bias_hard_swish",
    "float16", "bias_float16",
]  # fmt: skip


def with_epilogue(
    name: str,
    text: str,
    operands: Sequence[Operand],
    build: Callable[..., Any],
    numpy: Callable[..., np.ndarray] | None,
    out: tuple[int, ...],
    bias: tuple[int, ...],
) -> Drawn:
    """``build`` followed by what ``name`` says.

    Args:
        name: One of ``EPILOGUES``.
        text: What ``build`` is.
        operands: Its operands.
        build: Gives the tensor.
        numpy: Gives it in NumPy.
        out: Its shape.
        bias: Shape of a bias.
    """
    extra: list[Operand] = []
    if "bias" in name:
        extra.append(Operand(bias, constant=True))
    if "residual" in name:
        extra.append(Operand(out))
    after, after_numpy = next((f for k, f in _UNARY.items() if name.endswith(k)), _UNARY["none"])
    count = len(operands)

    def whole(*args: Any) -> Any:
        y = build(*args[:count])
        for other in args[count:]:
            y = op.add(y, other)
        return after(y)

    def whole_numpy(*args: np.ndarray) -> np.ndarray:
        assert numpy is not None
        y = numpy(*args[:count])
        for other in args[count:]:
            y = y + other
        return after_numpy(y)

    return Drawn(
        f"{text}, epilogue {name}",
        (*operands, *extra),
        whole,
        None if numpy is None else whole_numpy,
    )


# --- products ------------------------------------------------------------------------------------


def conv2d_numpy(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """Convolution: x (n, h, w, c), w (kh, kw, c / groups, o) -> (n, oh, ow, o)."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    kh, kw, inputs, outputs = w.shape
    high = (x.shape[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    wide = (x.shape[2] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    each = outputs // groups
    out = np.zeros((x.shape[0], high, wide, outputs))
    for ky in range(kh):
        for kx in range(kw):
            part = x[:, ky * dilation[0] :, kx * dilation[1] :]
            part = part[:, :: strides[0], :: strides[1]][:, :high, :wide]
            for g in range(groups):
                data = part[..., g * inputs : (g + 1) * inputs]
                mine = slice(g * each, (g + 1) * each)
                out[..., mine] += data @ w[ky, kx][:, mine]
    return out


@st.composite
def convolutions(draw: Draw, layout: str | None = None, grouping: str | None = None) -> Drawn:
    """2-d convolutions in three layouts, with every setting."""
    layout = layout or draw(st.sampled_from(["NHWC", "NHWC", "NCHW", "NCHW16c"]))
    kernel = [draw(st.sampled_from([1, 2, 3, 3, 5, 7])) for _ in "hw"]
    if draw(st.booleans()):
        kernel[1] = kernel[0]
    strides = [draw(st.integers(1, 3)) for _ in "hw"]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in "hw"]
    padding = [draw(st.integers(0, max(k // 2, 1))) for k in kernel * 2]
    size = [
        max(draw(SIZES), (k - 1) * d + 1 - padding[i] - padding[i + 2])
        for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))
    ]
    batch = draw(st.sampled_from([1, 1, 2]))
    grouping = grouping or draw(st.sampled_from(["one", "one", "depthwise", "several"]))
    if layout == "NCHW16c":
        grouping = "depthwise" if grouping == "depthwise" else "one"
        channels, outputs = (16 * draw(st.integers(1, 3)) for _ in "io")
        groups = 1
        if grouping == "depthwise":
            outputs = groups = channels
    elif grouping == "depthwise":
        groups = channels = draw(CHANNELS)
        outputs = channels * draw(st.sampled_from([1, 1, 2]))
    elif grouping == "several":
        groups = draw(st.sampled_from([2, 3, 4]))
        channels, outputs = (groups * draw(st.sampled_from([1, 2, 3, 5, 8, 16])) for _ in "io")
    else:
        groups, channels, outputs = 1, draw(CHANNELS), draw(CHANNELS)
    each = channels // groups
    high, wide = (
        (size[i] + padding[i] + padding[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // strides[i]
        + 1
        for i in (0, 1)
    )

    def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if layout == "NHWC":
            return conv2d_numpy(x, w, strides, padding, dilation, groups)
        if layout == "NCHW":
            x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
            y = conv2d_numpy(x, w, strides, padding, dilation, groups)
            return y.transpose(0, 3, 1, 2)
        n, c, h, v, lanes = x.shape
        x = x.transpose(0, 2, 3, 1, 4).reshape(n, h, v, c * lanes)
        w = w.transpose(2, 3, 1, 4, 0, 5).reshape(*kernel, each, outputs)
        y = conv2d_numpy(x, w, strides, padding, dilation, groups)
        return y.reshape(n, high, wide, -1, lanes).transpose(0, 3, 1, 2, 4)

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    out: tuple[int, ...]
    bias: tuple[int, ...]
    if layout == "NHWC":
        shapes = (batch, *size, channels), (*kernel, each, outputs)
        kernel_layout, out, bias = "HWIO", (batch, high, wide, outputs), (1, 1, 1, outputs)
    elif layout == "NCHW":
        shapes = (batch, channels, *size), (outputs, each, *kernel)
        kernel_layout, out, bias = "OIHW", (batch, outputs, high, wide), (1, outputs, 1, 1)
    else:
        inner = 1 if groups > 1 else 16
        shapes = (
            (batch, channels // 16, *size, 16),
            (outputs // 16, each // inner, *kernel, inner, 16),
        )
        kernel_layout = f"OIHW{inner}i16o"
        out, bias = (batch, outputs // 16, high, wide, 16), (1, outputs // 16, 1, 1, 16)

    def build(x: Any, w: Any) -> Any:
        return nn.conv2d(x, w, strides, padding, dilation, groups, layout, kernel_layout, layout)

    text = f"conv2d {layout} stride {strides} padding {padding} dilation {dilation} groups {groups}"
    # The weight of an activation product is no constant.
    operands = (
        Operand(shapes[0]),
        Operand(shapes[1], constant=draw(st.sampled_from([True] * 4 + [False]))),
    )
    name = draw(st.sampled_from(EPILOGUES))
    return with_epilogue(name, text, operands, build, numpy, out, bias)


@st.composite
def matmuls(draw: Draw) -> Drawn:
    """Products of matrices, plain and transposed, batched or not, of one row too."""
    rows = draw(st.sampled_from([1, 1, 2, 5, 7, 16, 29, 48, 97]))
    columns = draw(st.sampled_from([1, 3, 8, 13, 16, 31, 48, 64, 100]))
    depth = draw(st.sampled_from([1, 2, 7, 16, 33, 64, 130]))
    transposed = draw(st.booleans())
    kind = draw(st.sampled_from(["plain", "plain", "batched", "shared"]))
    batch = (draw(st.integers(2, 4)),) if kind != "plain" else ()
    weight = (columns, depth) if transposed else (depth, columns)
    right = (batch if kind == "batched" else ()) + weight
    # Attention multiplies two activations; a dense layer an activation and a weight.
    constant = (
        draw(st.booleans()) if kind == "batched" else draw(st.sampled_from([True, True, False]))
    )

    def swap(b: Any) -> list[int]:
        rank = len(right)
        return [*range(rank - 2), rank - 1, rank - 2]

    def build(a: Any, b: Any) -> Any:
        return op.matmul(a, op.permute_dims(b, swap(b)) if transposed else b)

    def numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ (b.transpose(swap(b)) if transposed else b)

    return with_epilogue(
        draw(st.sampled_from(EPILOGUES)),
        f"matmul {kind}{' transposed' if transposed else ''}",
        (Operand((*batch, rows, depth)), Operand(right, constant=constant)),
        build,
        numpy,
        (*batch, rows, columns),
        (columns,),
    )


@st.composite
def transposed_convolutions(draw: Draw) -> Drawn:
    """Transposed 2-d convolutions in two layouts."""
    layout = draw(st.sampled_from(["NHWC", "NCHW"]))
    kernel = [draw(st.sampled_from([1, 2, 3, 4]))] * 2
    strides = [draw(st.integers(1, 3))] * 2
    padding = [draw(st.integers(0, (kernel[0] - 1) // 2)) for _ in range(4)]
    extra = [draw(st.integers(0, strides[0] - 1))] * 2
    size = [draw(st.integers(1, 7)) for _ in "hw"]
    size = [s + 2 if kernel[0] > 2 else s for s in size]
    groups = draw(st.sampled_from([1, 1, 1, 2])) if layout == "NCHW" else 1
    channels, each = groups * draw(st.sampled_from([1, 3, 8, 16])), draw(CHANNELS)
    high, wide = (
        (size[i] - 1) * strides[i] - padding[i] - padding[i + 2] + kernel[i] + extra[i]
        for i in (0, 1)
    )
    outputs = each * groups

    def build(x: Any, w: Any) -> Any:
        return nn.conv2d_transpose(
            x,
            w,
            strides,
            padding,
            extra,
            groups=groups,
            data_layout=layout,
            kernel_layout="IOHW" if layout == "NCHW" else "HWIO",
        )

    def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if layout == "NCHW":
            x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 0, 1)
        full = np.zeros((1, (size[0] + 2) * 3 + 8, (size[1] + 2) * 3 + 8, outputs))
        ci = channels // groups
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                for g in range(groups):
                    part = x[..., g * ci : (g + 1) * ci] @ w[ky, kx, g * ci : (g + 1) * ci]
                    rows = slice(ky, ky + size[0] * strides[0], strides[0])
                    columns = slice(kx, kx + size[1] * strides[1], strides[1])
                    full[:, rows, columns, g * each : (g + 1) * each] += part
        out = full[:, padding[0] : padding[0] + high, padding[1] : padding[1] + wide]
        return out if layout == "NHWC" else out.transpose(0, 3, 1, 2)

    if layout == "NHWC":
        shapes = (1, *size, channels), (*kernel, channels, each)
        out, bias = (1, high, wide, outputs), (1, 1, 1, outputs)
    else:
        shapes = (1, channels, *size), (channels, each, *kernel)
        out, bias = (1, outputs, high, wide), (1, outputs, 1, 1)
    return with_epilogue(
        draw(st.sampled_from(EPILOGUES)),
        f"conv2d_transpose {layout} kernel {kernel} stride {strides} padding {padding} "
        f"output padding {extra} groups {groups}",
        (Operand(shapes[0]), Operand(shapes[1], constant=True)),
        build,
        numpy,
        out,
        bias,
    )


# --- pooling and reductions ----------------------------------------------------------------------


@st.composite
def poolings(draw: Draw) -> Drawn:
    """Maximum and average over windows, or over the whole image."""
    layout = draw(st.sampled_from(["NHWC", "NHWC", "NCHW"]))
    kind = draw(st.sampled_from(["max", "max", "avg", "global"]))
    batch, channels = draw(st.sampled_from([1, 2])), draw(CHANNELS)
    size = [draw(SIZES) for _ in "hw"]
    spatial = [1, 2] if layout == "NHWC" else [2, 3]

    def shape(h: int, w: int) -> tuple[int, ...]:
        return (batch, h, w, channels) if layout == "NHWC" else (batch, channels, h, w)

    bias = (1, 1, 1, channels) if layout == "NHWC" else (1, channels, 1, 1)
    name = draw(st.sampled_from(EPILOGUES))
    if kind == "global":
        keep = draw(st.booleans())
        return with_epilogue(
            name if keep else "none",
            f"mean over {layout} keepdims {keep}",
            (Operand(shape(*size)),),
            lambda x: op.mean(x, spatial, keepdims=keep),
            lambda x: x.mean(tuple(spatial), keepdims=keep),
            shape(1, 1),
            bias,
        )
    kernel = [draw(st.sampled_from([1, 2, 3, 5])) for _ in "hw"]
    strides = [draw(st.integers(1, 3)) for _ in "hw"]
    padding = [draw(st.integers(0, k // 2)) for k in kernel * 2]
    size = [max(s, k) for s, k in zip(size, kernel, strict=True)]
    include = draw(st.booleans())
    high, wide = (
        (size[i] + padding[i] + padding[i + 2] - kernel[i]) // strides[i] + 1 for i in (0, 1)
    )

    def build(x: Any) -> Any:
        if kind == "max":
            return nn.max_pool2d(x, kernel, strides, padding, layout=layout)
        return nn.avg_pool2d(x, kernel, strides, padding, count_include_pad=include, layout=layout)

    def windows(x: np.ndarray, fill: float) -> np.ndarray:
        x = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
        top, left, bottom, right = padding
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
        return sliding_window_view(x, kernel, axis=(1, 2))[:, :: strides[0], :: strides[1]]

    def numpy(x: np.ndarray) -> np.ndarray:
        if kind == "max":
            y = windows(x, -np.inf).max((-1, -2))
        else:
            total = windows(x, 0.0).sum((-1, -2))
            count = windows(np.ones_like(x), 0.0).sum((-1, -2))
            y = total / (math.prod(kernel) if include else np.maximum(count, 1))
        return y if layout == "NHWC" else y.transpose(0, 3, 1, 2)

    return with_epilogue(
        name,
        f"{kind}_pool2d {layout} kernel {kernel} stride {strides} padding {padding} "
        f"include {include}",
        (Operand(shape(*size)),),
        build,
        numpy,
        shape(high, wide),
        bias,
    )


def _softmax_numpy(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@st.composite
def reductions(draw: Draw) -> Drawn:
    """Sums, maxima, means, softmax, normalisation and argmax over any axis."""
    extents = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 17, 33, 48, 64, 130])
    shape = tuple(draw(st.lists(extents, min_size=1, max_size=4)))
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    rank = len(shape)
    axis = draw(st.integers(0, rank - 1))
    keep = draw(st.booleans())
    kind = draw(
        st.sampled_from(
            ["sum", "max", "min", "mean", "softmax", "softmax", "layer_norm", "variance", "argmax"]
        )
    )
    axes = [axis]
    if kind in ("sum", "max", "mean", "variance") and rank > 1 and draw(st.booleans()):
        axes = sorted({axis, draw(st.integers(0, rank - 1))})
    at = tuple(axes)
    kept = tuple(1 if i in axes else e for i, e in enumerate(shape))
    out = kept if keep else tuple(e for i, e in enumerate(shape) if i not in axes)
    text = f"{kind} over {axes} keepdims {keep}"
    x = Operand(shape)
    if kind == "softmax":
        return Drawn(text, (x,), lambda v: nn.softmax(v, axis), lambda v: _softmax_numpy(v, axis))
    if kind == "argmax":
        return Drawn(
            text,
            (x,),
            lambda v: op.argmax(v, axis, keepdims=keep),
            lambda v: v.argmax(axis, keepdims=keep),
            coarse=True,
        )
    if kind == "layer_norm":
        last = rank - 1

        def normal(v: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
            mean, variance = v.mean(last, keepdims=True), v.var(last, keepdims=True)
            return (v - mean) / np.sqrt(variance + 1e-5) * scale + shift

        weight = Operand((shape[-1],), constant=True)
        return Drawn(
            text,
            (x, weight, weight),
            lambda v, scale, shift: nn.layer_norm(v, scale, shift, [last]),
            normal,
        )
    functions: dict[str, tuple[Any, Any]] = {
        "sum": (op.sum, np.sum),
        "max": (op.max, np.max),
        "min": (op.min, np.min),
        "mean": (op.mean, np.mean),
        "variance": (op.variance, np.var),
    }
    build, numpy = functions[kind]
    name = draw(st.sampled_from(EPILOGUES)) if out else "none"
    return with_epilogue(
        name,
        text,
        (x,),
        lambda v: build(v, axes, keepdims=keep),
        lambda v: numpy(v, at, keepdims=keep),
        out,
        out,
    )


# --- no reduction --------------------------------------------------------------------------------


_CHAIN: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    **{k: v for k, v in _UNARY.items() if k not in ("none", "float16")},
    "exp": (lambda y: op.exp(op.clip(y, -4, 4)), lambda y: np.exp(np.clip(y, -4, 4))),
    "tanh": (op.tanh, np.tanh),
    "sqrt": (lambda y: op.sqrt(op.abs(y)), lambda y: np.sqrt(np.abs(y))),
    "negative": (op.negative, np.negative),
}


_COSTLY = ("sigmoid", "tanh", "exp", "hard_swish")


@st.composite
def elementwise(draw: Draw) -> Drawn:
    """Chains of arithmetic on one tensor and others that are broadcast to it."""
    shape = tuple(
        draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 16, 17, 50]), min_size=1, max_size=4))
    )
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    steps = draw(st.lists(st.sampled_from([*_CHAIN, "add", "multiply"]), min_size=1, max_size=4))
    # A few of these in one expression take the code generator many seconds.
    costly = [step for step in steps if step in _COSTLY]
    steps = [step for step in steps if step not in costly[2:]]
    operands = [Operand(shape)]
    for step in steps:
        if step in ("add", "multiply"):
            ones = [draw(st.booleans()) for _ in shape]
            other = tuple(1 if one else e for one, e in zip(ones, shape, strict=True))
            operands.append(Operand(other, constant=draw(st.booleans())))
    cast = draw(st.booleans())

    def chain(place: int, add: Any, multiply: Any) -> Callable[..., Any]:
        def run(x: Any, *others: Any) -> Any:
            rest = list(others)
            for step in steps:
                if step == "add":
                    x = add(x, rest.pop(0))
                elif step == "multiply":
                    x = multiply(x, rest.pop(0))
                else:
                    x = _CHAIN[step][place](x)
            return op.astype(x, "float16") if cast and place == 0 else x

        return run

    return Drawn(
        f"chain of {', '.join(steps)}{', float16' if cast else ''}",
        tuple(operands),
        chain(0, op.add, op.multiply),
        chain(1, np.add, np.multiply),
    )


@st.composite
def movements(draw: Draw) -> Drawn:
    """Transpose, concat, pad, resize, gather and slice."""
    kind = draw(st.sampled_from(["transpose", "concat", "pad", "resize", "take", "slice"]))
    extents = st.sampled_from([1, 2, 3, 5, 8, 13, 16, 24])
    shape = tuple(draw(st.lists(extents, min_size=2, max_size=4)))
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    rank = len(shape)
    axis = draw(st.integers(0, rank - 1))
    x = Operand(shape)
    operands: tuple[Operand, ...] = (x,)
    build: Callable[..., Any]
    numpy: Callable[..., np.ndarray] | None
    if kind == "transpose":
        order = draw(st.permutations(range(rank)))
        out = tuple(shape[i] for i in order)
        text = f"transpose {order}"
        build, numpy = lambda v: op.permute_dims(v, order), lambda v: v.transpose(order)
    elif kind == "concat":
        other = tuple(draw(extents) if i == axis else e for i, e in enumerate(shape))
        operands = x, Operand(other), x
        out = tuple(2 * e + other[i] if i == axis else e for i, e in enumerate(shape))
        text = f"concat {axis}"
        build = lambda *v: op.concat(list(v), axis)  # noqa: E731
        numpy = lambda *v: np.concatenate(v, axis)  # noqa: E731
    elif kind == "pad":
        widths = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in shape]
        out = tuple(e + sum(w) for e, w in zip(shape, widths, strict=True))
        text = f"pad {widths}"
        flat = [n for pair in widths for n in pair]
        build, numpy = (
            lambda v: nn.pad(v, flat, pad_value=1.5),
            lambda v: np.pad(v, widths, constant_values=1.5),
        )
    elif kind == "resize":
        layout, method = (
            draw(st.sampled_from(["NCHW", "NHWC"])),
            draw(st.sampled_from(["nearest_neighbor", "linear"])),
        )
        size = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        high, wide, channels = draw(SIZES), draw(SIZES), draw(CHANNELS)
        first = (1, channels, high, wide) if layout == "NCHW" else (1, high, wide, channels)
        out = (1, channels, *size) if layout == "NCHW" else (1, *size, channels)
        operands = (Operand(first),)
        text = f"resize {layout} {method} {size}"
        build, numpy = lambda v: op.image.resize2d(v, size, layout=layout, method=method), None
    elif kind == "take":
        index = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)))
        rows = max(4, shape[axis])
        shape = tuple(rows if i == axis else e for i, e in enumerate(shape))
        operands = Operand(shape), Operand(index, dtype="int64")
        out = (*shape[:axis], *index, *shape[axis + 1 :])
        text = f"take {axis}"
        build = lambda v, i: op.take(v, i, axis)  # noqa: E731
        numpy = lambda v, i: np.take(v, i.astype("int64"), axis)  # noqa: E731
    else:
        begin = [draw(st.integers(0, e - 1)) for e in shape]
        end = [draw(st.integers(b + 1, e)) for b, e in zip(begin, shape, strict=True)]
        step = [draw(st.integers(1, 3)) for _ in shape]
        out = tuple(-(-(e - b) // s) for b, e, s in zip(begin, end, step, strict=True))
        text = f"slice {begin} {end} {step}"
        build = lambda v: op.strided_slice(v, list(range(rank)), begin, end, step)  # noqa: E731
        cut = tuple(slice(*bounds) for bounds in zip(begin, end, step, strict=True))
        numpy = lambda v: v[cut]  # noqa: E731
    name = draw(st.sampled_from(EPILOGUES))
    return with_epilogue(name, text, operands, build, numpy, out, out)


KINDS: dict[str, st.SearchStrategy[Drawn]] = {
    "convolution": convolutions(),
    "depthwise": convolutions(grouping="depthwise"),
    "matmul": matmuls(),
    "transposed_convolution": transposed_convolutions(),
    "pooling": poolings(),
    "reduction": reductions(),
    "elementwise": elementwise(),
    "movement": movements(),
}
