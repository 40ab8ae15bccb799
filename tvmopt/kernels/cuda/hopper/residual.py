"""Residual inputs of an epilogue: read at the index that is written, so TMA can prefetch them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.problem import BYTES

_POINTS = 64


@dataclasses.dataclass(frozen=True)
class Residual:
    """An epilogue input with one element for each output element, in the same order.

    Attributes:
        number: Index of the input in the epilogue's inputs.
        value: Variable for its element in ``epilogue``.
        epilogue: The epilogue with this variable in place of the loads.
    """

    number: int
    value: tirx.Var
    epilogue: Epilogue


def residual_of(epilogue: Epilogue, shape: Sequence[int], out: str) -> Residual | None:
    """Return the first residual input that is as wide as the output; None where there is none.

    Args:
        epilogue: The epilogue.
        shape: Extents of its axes.
        out: Output dtype.
    """
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(epilogue.expr, (ir.TensorLoad, found.append), order="post")
    for number, buffer in enumerate(epilogue.inputs):
        loads = [load for load in found if load.source.same_as(buffer)]
        if BYTES.get(str(buffer.dtype)) != BYTES[out] or not loads:
            continue
        if not all(_is_in_place(load, epilogue.axes, shape) for load in loads):
            continue
        value = tirx.Var("residual", str(buffer.dtype))

        def on_load(
            load: ir.TensorLoad, buffer: tirx.Buffer = buffer, value: tirx.Var = value
        ) -> ir.Expr:
            return value if load.source.same_as(buffer) else load

        expr = tvm_ffi.structural_map(epilogue.expr, (ir.TensorLoad, on_load), order="post")
        return Residual(number, value, dataclasses.replace(epilogue, expr=expr))
    return None


def _is_in_place(load: ir.TensorLoad, axes: Sequence[tirx.Var], shape: Sequence[int]) -> bool:
    """Whether load and store have the same linear index; checked at corners and random points."""
    extents = [int(e) if isinstance(e, tirx.IntImm) else 0 for e in load.source.shape]
    if math.prod(extents) != math.prod(shape):
        return False
    generator = random.Random(0)
    corners = [tuple(0 for _ in shape), tuple(e - 1 for e in shape)]
    places = corners + [
        tuple(generator.choice((0, e - 1, generator.randrange(e))) for e in shape)
        for _ in range(_POINTS)
    ]
    for place in places:
        values = dict(zip(axes, place, strict=True))
        try:
            at = [_number(index, values) for index in load.indices]
        except _NotANumberError:
            return False
        if _flat(at, extents) != _flat(place, shape):
            return False
    return True


class _NotANumberError(Exception):
    """An index depends on more than the output axes."""


def _number(expr: ir.Expr, values: dict[tirx.Var, int]) -> int:
    """Evaluate an index expression at ``values``."""
    if isinstance(expr, tirx.IntImm):
        return int(expr)
    if isinstance(expr, tirx.Var) and expr in values:
        return values[expr]
    if isinstance(expr, tirx.Cast):
        return _number(expr.value, values)
    if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv,
                         tirx.FloorMod)):  # fmt: skip
        a, b = _number(expr.a, values), _number(expr.b, values)
        if isinstance(expr, tirx.Add):
            return a + b
        if isinstance(expr, tirx.Sub):
            return a - b
        if isinstance(expr, tirx.Mul):
            return a * b
        if a < 0 or b <= 0:
            raise _NotANumberError
        return a // b if isinstance(expr, (tirx.Div, tirx.FloorDiv)) else a % b
    raise _NotANumberError


def _flat(place: Sequence[int], shape: Sequence[int]) -> int:
    number = 0
    for index, extent in zip(place, shape, strict=True):
        number = number * extent + index
    return number
