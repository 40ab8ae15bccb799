"""Match a sum reduction to a batched GEMM: classify its axes as batch, M, N and K."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm import ir, sym, tirx
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.expressions import (
    ComputeBlock,
    NotThisForm,
    affine,
    number,
    replace,
)


class Roles:
    """Roles of the axes of a reduction: batch, rows (M), columns (N) and depth (K).

    Attributes:
        batch: Extents of the batch axes.
        rows: Extents of the M axes.
        columns: Extent of the N axis.
        depth: Extent of the K axis.
        batch_a: Whether A has the batch axes.
        batch_b: Whether B has the batch axes (always).
        trans_a: Whether A is stored as ``[batch, k, m]``.
        trans_b: Whether B is stored as ``[batch, n, k]``.
    """

    def __init__(self, anchor: ComputeBlock, a: ir.TensorLoad, b: ir.TensorLoad) -> None:
        depth = [
            (v, e)
            for v, e, r in zip(anchor.axes, anchor.extents, anchor.reduce, strict=True)
            if r and e != 1
        ]
        if len(depth) != 1 or not isinstance(depth[0][1], int):
            raise NotThisForm("K is not one axis of static extent")
        [(k, self.depth)] = depth
        at_a, at_b = _plain(anchor, a), _plain(anchor, b)
        shape = [
            (v, e) for v, e in zip(anchor.parallel, map(number, anchor.buffer.shape), strict=True)
        ]
        for index, (axis, _) in zip(anchor.indices, shape, strict=True):
            if not (isinstance(index, tirx.Var) and index.same_as(axis)):
                raise NotThisForm("the reduction does not write its output in order")
        axes = [(v, e) for v, e in shape if not _is_one(e)]
        if not axes or not _holds(at_b, axes[-1][0]) or _holds(at_a, axes[-1][0]):
            raise NotThisForm("the last axis is not N")
        columns, size = axes.pop()
        if not isinstance(size, int):
            raise NotThisForm("N is dynamic")
        self.columns = size
        both = [_holds(at_a, v) and _holds(at_b, v) for v, _ in axes]
        only_a = [_holds(at_a, v) and not _holds(at_b, v) for v, _ in axes]
        only_b = [_holds(at_b, v) and not _holds(at_a, v) for v, _ in axes]
        count = sum(both) + sum(only_b)
        if not all(x or y for x, y in zip(both[:count], only_b[:count], strict=True)):
            raise NotThisForm("M comes before the batch")
        if any(only_b) and any(both):
            raise NotThisForm("A and B share only a part of the batch")
        batch, rows = axes[:count], axes[count:]
        if not all(only_a[count:]):
            raise NotThisForm("an axis that indexes neither operand")
        if not all(isinstance(e, int) for _, e in batch):
            raise NotThisForm("a dynamic batch")
        self.batch = [e for _, e in batch]
        self.rows = [e for _, e in rows]
        self.batch_a, self.batch_b = not any(only_b), True
        names_b = [v for v, _ in batch]
        names_a = names_b if self.batch_a else []
        row_names = [v for v, _ in rows]
        self.trans_a = self._order(at_a, names_a, row_names, k, "A")
        self.trans_b = self._order(at_b, names_b, [k], columns, "B")

    @staticmethod
    def _order(
        found: list[tirx.Var],
        batch: list[tirx.Var],
        first: list[tirx.Var],
        last: tirx.Var,
        name: str,
    ) -> bool:
        """Whether ``first`` and ``last`` are transposed in memory."""
        for swapped, wanted in (
            (False, [*batch, *first, last]),
            (True, [*batch, last, *first]),
        ):
            same = len(found) == len(wanted) and all(
                x.same_as(y) for x, y in zip(found, wanted, strict=True)
            )
            if same and not (swapped and len(first) > 1):
                return swapped
        raise NotThisForm(f"the axes of {name} are in an unknown order")


def _is_one(extent: Expr | int) -> bool:
    return isinstance(extent, int) and extent == 1


def _holds(found: list[tirx.Var], axis: tirx.Var) -> bool:
    return any(v.same_as(axis) for v in found)


def _plain(anchor: ComputeBlock, load: ir.TensorLoad) -> list[tirx.Var]:
    """Return the axes that index ``load``, one for each dimension; extent 1 is left out."""
    found = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        if number(extent) == 1:
            continue
        found_index = affine(index, anchor)
        if found_index.offset or list(found_index.factors.values()) != [1]:
            raise NotThisForm("an operand is not indexed by one axis in each dimension")
        [axis] = found_index.factors
        whole = anchor.extent(axis)
        if not sym.Analyzer().can_prove_equal(whole, extent):
            raise NotThisForm("an operand is read in part")
        found.append(axis)
    return found


def regroup(
    epilogue: Epilogue, groups: Sequence[Sequence[Expr | int]], shape: Sequence[Expr]
) -> Epilogue:
    """Return the epilogue with each group of output axes fused into one axis.

    Args:
        epilogue: The epilogue.
        groups: Extents of the axes in each group; axes of extent 1 are in none.
        shape: Output shape.
    """
    names = [tirx.Var(f"v{i}", "int32") for i in range(len(groups))]
    zero = tirx.IntImm("int32", 0)
    values: dict[tirx.Var, Expr] = {}
    wide = []
    for axis, extent in zip(epilogue.axes, shape, strict=True):
        if number(extent) == 1:
            values[axis] = zero
        else:
            wide.append(axis)
    for name, group in zip(names, groups, strict=True):
        mine, wide = wide[: len(group)], wide[len(group) :]
        rest: Expr = name
        for axis, extent in reversed(list(zip(mine[1:], group[1:], strict=True))):
            extent = tirx.Cast("int32", extent) if not isinstance(extent, int) else extent
            values[axis] = tirx.truncmod(rest, extent)
            rest = tirx.truncdiv(rest, extent)
        if mine:
            values[mine[0]] = rest
    return dataclasses.replace(
        epilogue, axes=tuple(names), expr=replace(epilogue.expr, _typed(values))
    )


def _typed(values: dict[tirx.Var, Expr]) -> dict[tirx.Var, Expr]:
    result = {}
    for axis, value in values.items():
        dtype = str(axis.ty.dtype)
        result[axis] = value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
    return result
