"""Random elementwise functions and data movement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.cpu.drawn import (
    CHANNELS,
    EPILOGUES,
    SIZES,
    UNARY,
    Draw,
    Drawn,
    Operand,
    with_epilogue,
)

op, nn = relax.op, relax.op.nn

_CHAIN: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    **{k: v for k, v in UNARY.items() if k not in ("none", "float16")},
    "exp": (lambda y: op.exp(op.clip(y, -4, 4)), lambda y: np.exp(np.clip(y, -4, 4))),
    "tanh": (op.tanh, np.tanh),
    "sqrt": (lambda y: op.sqrt(op.abs(y)), lambda y: np.sqrt(np.abs(y))),
    "negative": (op.negative, np.negative),
}


_COSTLY = ("sigmoid", "tanh", "exp", "hard_swish")


@st.composite
def elementwise(draw: Draw) -> Drawn:
    """Draw chains of arithmetic on one tensor and on tensors broadcast to it."""
    shape = tuple(
        draw(st.lists(st.sampled_from([1, 2, 3, 7, 8, 16, 17, 50]), min_size=1, max_size=4))
    )
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    steps = draw(st.lists(st.sampled_from([*_CHAIN, "add", "multiply"]), min_size=1, max_size=4))
    # LLVM takes many seconds for a few of these in one expression.
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
    """Draw transpose, concat, pad, resize, gather and slice."""
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
