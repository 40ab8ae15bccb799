"""Transposes of a block: Q before, the output after.

Vector loads along the axis that is contiguous in the source, stores row by row in unrolled code;
LLVM emits register shuffles, as for :mod:`tvmopt.kernels.cpu.passes.transpose`.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention import AttentionProblem
from tvmopt.kernels.attention.problem import AXES
from tvmopt.kernels.cpu.attention.tiling import AttentionTiling

_TILE = 8


def transpose_queries(
    p: AttentionProblem,
    t: AttentionTiling,
    of: dict[str, tirx.Buffer],
    b: Expr,
    h: Expr,
    first: Expr,
) -> None:
    """Emit ``QT[k, q] = Q[first + q, k]``."""
    q, transposed = of["q"], of["qt"]
    rows = _TILE if t.query_block % _TILE == 0 else t.lanes

    def store(row: Expr, k: Expr) -> None:
        value = q[_place(p.q_axes, (b, h, first + row, k))].astype("float32")
        build.buffer_store(transposed, value, [k, row])

    whole, rest = divmod(p.head_size, _TILE)
    with build.serial(t.query_block // rows) as group:
        if whole:
            with build.serial(whole) as k:
                for row in range(rows):
                    with build.vectorized(_TILE) as lane:
                        store(group * rows + row, k * _TILE + lane)
        for k in range(rest):
            with build.serial(rows) as row:
                store(group * rows + row, tirx.IntImm("int32", whole * _TILE + k))


def store_output(
    p: AttentionProblem,
    t: AttentionTiling,
    of: dict[str, tirx.Buffer],
    b: Expr,
    h: Expr,
    first: Expr,
) -> None:
    """Emit ``O[first + q, d] = OT[d, q] / l[q]``, and 0 where a query sees no key."""
    out, transposed, total = of["out"], of["ot"], of["sum"]
    zero, one = tirx.const(0, "float32"), tirx.const(1, "float32")
    for v in range(t.vectors):
        with build.vectorized(t.lanes) as lane:
            at = v * t.lanes + lane
            sum_ = total[at]
            inverse = tirx.Select(tirx.EQ(sum_, zero), zero, one / sum_)
            build.buffer_store(of["factor"], inverse, [at])

    def store(row: Expr, d: Expr) -> None:
        value = transposed[d, row] * of["factor"][row]
        place = _place(p.out_axes, (b, h, first + row, d))
        build.buffer_store(out, value.astype(p.dtype), list(place))

    def vectors(group: Expr) -> None:
        whole, rest = divmod(p.value_size, _TILE)
        if whole:
            with build.serial(whole) as tile:
                for d in range(_TILE):
                    with build.vectorized(t.lanes) as lane:
                        store(group * t.lanes + lane, tile * _TILE + d)
        for d in range(rest):
            with build.vectorized(t.lanes) as lane:
                store(group * t.lanes + lane, tirx.IntImm("int32", whole * _TILE + d))

    with build.serial(t.vectors) as group:
        vectors(group)


def _place(axes: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(index[AXES.index(axis)] for axis in axes)
