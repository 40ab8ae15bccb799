"""Fused functions with an anchor, their NumPy references, and traces of their operators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.s_tir import meta_schedule as ms

from tests.kernels.cpu.candidates import lowered
from tests.kernels.cpu.drawn import BYTES, FLOAT, Drawn, Operand, Types
from tests.kernels.cpu.drawn_products import conv2d_numpy
from tvmopt.tune import Task
from tvmopt.tune.budget import SearchEffort
from tvmopt.tune.space import make_context
from tvmopt.tune.tasks import function_arguments

from .models import TARGET

op, nn = relax.op, relax.op.nn
Shape = Sequence[int]


def convolution(
    x: Shape,
    w: Shape,
    epilogue: str = "bias_relu",
    *,
    layout: str = "NHWC",
    strides: int = 1,
    padding: Sequence[int] = (1, 1, 1, 1),
    groups: int = 1,
    types: Types = FLOAT,
) -> Drawn:
    """A convolution with an epilogue.

    Args:
        x: Shape of the data in ``layout``.
        w: Shape of the weight: HWIO, or OIHW for NCHW.
        epilogue: Name of an epilogue of ``types``.
        layout: NHWC or NCHW.
        strides: Strides in both directions.
        padding: Top, left, bottom, right.
        groups: Number of channel groups.
        types: Dtypes of data, weight and accumulator.
    """
    last = layout == "NHWC"

    def build(a: Any, b: Any) -> Any:
        layouts = (layout, "HWIO" if last else "OIHW", layout)
        return nn.conv2d(a, b, strides, list(padding), 1, groups, *layouts, types.sums)

    def numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not last:
            a, b = a.transpose(0, 2, 3, 1), b.transpose(2, 3, 1, 0)
        y = conv2d_numpy(a, b, [strides] * 2, padding, [1, 1], groups)
        return y if last else y.transpose(0, 3, 1, 2)

    out = numpy(np.zeros(x), np.zeros(w)).shape
    bias = (1, 1, 1, out[3]) if last else (1, out[1], 1, 1)
    operands = Operand(tuple(x), dtype=types.data), Operand(tuple(w), True, types.weight)
    return types.with_epilogue(epilogue, "conv2d", operands, build, numpy, out, bias)


def matmul(
    x: Shape, w: Shape, epilogue: str = "bias_relu", *, constant: bool = True, types: Types = FLOAT
) -> Drawn:
    """A matmul with an epilogue of ``types``."""
    return types.with_epilogue(
        epilogue,
        "matmul",
        (Operand(tuple(x), dtype=types.data), Operand(tuple(w), constant, types.weight)),
        lambda a, b: op.matmul(a, b, out_dtype=types.sums),
        lambda a, b: a @ b,
        (*x[:-1], w[-1]),
        (w[-1],),
    )


def after(drawn: Drawn, build: Callable[[Any], Any], numpy: Callable[[Any], Any]) -> Drawn:
    """Append one or more operators to ``drawn``."""
    assert drawn.numpy is not None
    before, values = drawn.build, drawn.numpy
    return Drawn(
        drawn.text, drawn.operands, lambda *a: build(before(*a)), lambda *a: numpy(values(*a))
    )


def residual_first() -> Drawn:
    """A convolution plus a residual that is computed before it in the function."""

    def build(x: Any, residual: Any, w: Any) -> Any:
        builder = relax.BlockBuilder.current()
        scaled = builder.emit(op.multiply(op.astype(residual, "float32"), relax.const(0.5)))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return op.add(builder.emit(nn.conv2d(x, w, padding=1, **layouts)), scaled)

    def numpy(x: np.ndarray, residual: np.ndarray, w: np.ndarray) -> np.ndarray:
        return conv2d_numpy(x, w, [1, 1], [1] * 4, [1, 1], 1) + residual * 0.5

    operands = (
        Operand((1, 7, 7, 8)),
        Operand((1, 7, 7, 16), dtype="int8"),
        Operand((3, 3, 8, 16), constant=True),
    )
    return Drawn("residual first", operands, build, numpy)


def mish() -> Drawn:
    """A matmul with an epilogue of several stages, too deep for one expression."""

    def build(y: Any) -> Any:
        builder = relax.BlockBuilder.current()
        inner = builder.emit(op.tanh(builder.emit(op.sigmoid(y))))
        return op.sigmoid(builder.emit(op.multiply(inner, y)))

    def numpy(y: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.tanh(1 / (1 + np.exp(-y))) * y))

    return after(
        matmul((8, 16), (16, 16), "none"), lambda y: build(relax.BlockBuilder.current().emit(y)),
        numpy,
    )  # fmt: skip


def spread() -> Drawn:
    """A matmul of one row that is added to each of several rows."""
    alone = matmul((1, 64), (64, 24), "none")
    assert alone.numpy is not None
    build, numpy = alone.build, alone.numpy
    return Drawn(
        "one row for several",
        (*alone.operands, Operand((5, 24))),
        lambda x, w, rows: op.add(build(x, w), rows),
        lambda x, w, rows: numpy(x, w) + rows,
    )


#: The convolution alone: the operator of :func:`residual_first`.
ALONE = convolution((1, 7, 7, 8), (3, 3, 8, 16), "none")

#: Functions with an anchor, by name.
FUSED: dict[str, Drawn] = {
    "convolution in NCHW": convolution((1, 8, 9, 9), (16, 8, 3, 3), layout="NCHW"),
    "convolution with a residual": convolution(
        (1, 9, 9, 8), (3, 3, 8, 16), "bias_residual_relu", strides=2
    ),
    "convolution 1x1": convolution((1, 7, 7, 16), (1, 1, 16, 24), padding=(0, 0, 0, 0)),
    "depthwise": convolution((1, 8, 8, 16), (3, 3, 1, 16), "clip", groups=16),
    "byte convolution": convolution(
        (1, 6, 6, 16), (3, 3, 16, 16), "bias_residual_uint8", types=BYTES
    ),
    "matmul": matmul((24, 48), (48, 32)),
    "matmul of one row": matmul((1, 512), (512, 10)),
    "batched matmul": matmul((3, 16, 24), (3, 24, 20), "sigmoid", constant=False),
    "byte matmul": matmul((12, 32), (32, 24), "bias_int8", types=BYTES),
    "two stages": mish(),
    "one row for several": spread(),
}


def fused(drawn: Drawn, target: tvm.target.Target = TARGET) -> IRModule:
    """Lower ``drawn`` to a module; constants are its last arguments."""
    return lowered(drawn, target)


def functions(mod: IRModule) -> list[tirx.PrimFunc]:
    """Return the TensorIR functions of a module."""
    return [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]


def fused_function(drawn: Drawn) -> tirx.PrimFunc:
    """Return the one function that ``drawn`` lowers to."""
    [func] = functions(fused(drawn))
    return func


def sampled_traces(operator: tirx.PrimFunc, count: int, seed: int = 1) -> list[Any]:
    """Return the first traces that MetaSchedule would measure for ``operator``."""
    mod = IRModule({"main": operator.with_attr("global_symbol", "main")})
    task = Task("operator", mod, 1, 1.0, "", function_arguments(operator), "operator")
    logger = logging.Logger("samples", logging.CRITICAL)
    context = make_context(task, TARGET, SearchEffort(count, 16, 1), seed, 1, logger)
    context.pre_tuning(
        count,
        count,
        context.generate_design_space(),
        ms.database.MemoryDatabase(),
        ms.cost_model.RandomModel(seed=seed),
    )
    return [found.sch.trace for found in context.generate_measure_candidates() or []][:count]
