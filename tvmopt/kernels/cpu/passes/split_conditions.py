"""Loop partition for concat along the vector axis: split the loop where its condition changes.

TVM scalarises a vectorised loop whose ``if_then_else`` condition depends on the loop variable.
Between two changes the condition is constant, and each part is a plain vector copy.
"""

from __future__ import annotations

import itertools
import math

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Axis, block_facts, variables
from tvmopt.kernels.cpu.common.stage import parallelize, vector_length
from tvmopt.kernels.cpu.hint import CpuHint

# Maximum parts of a loop; more parts cost more code size than they gain.
_MOST_PARTS = 24


def schedule_between_conditions(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint) -> bool:
    """Partition a root-level block at the changes of its condition, and vectorise the parts.

    Before -> after, for operands of 24 and 13 channels::

        for y, x, c: C[y, x, c] = if c < 24: A[y, x, c] else B[y, x, c - 24]

        for y in T.parallel(Y): for x:
            for c in T.vectorized(24): C[y, x, c] = A[y, x, c]
            for c in T.vectorized(24, 37): C[y, x, c] = B[y, x, c - 24]

    Each part becomes a block. Nothing is done unless the condition depends on the innermost axis,
    and all accesses are contiguous along it.

    Returns:
        Whether the block was scheduled.
    """
    facts = block_facts(sch, block)
    wide = [i for i, axis in enumerate(facts.axes) if axis.extent > 1]
    if not wide or facts.stores != 1 or facts.divides or not facts.conditional[wide[-1]]:
        return False
    inner = wide[-1]
    if facts.write.strides[inner] != 1 or any(r.strides[inner] not in (0, 1) for r in facts.reads):
        return False
    axis = facts.axes[inner]
    changes = condition_changes(sch.get(block), axis)
    if not changes:
        return False
    loops = sch.get_loops(block)
    last = loops.pop(inner)
    sch.reorder(*loops, last)
    lanes = hint.arch.lanes(facts.dtype)
    step = vector_length(math.gcd(axis.extent, *changes), lanes, hint.vector_registers)
    ends = [*changes, axis.extent]
    if 2 * step > lanes or step == axis.extent:
        ends = [end // step for end in ends]
    else:
        step = 1
        ends = _short_parts(ends, lanes * hint.vector_registers)
    if len(ends) > _MOST_PARTS:
        return False
    parallelize(sch, loops, hint, facts.work)
    if step > 1:
        last, vector = sch.split(last, [axis.extent // step, step])
        sch.vectorize(vector)
    sizes = [end - start for start, end in itertools.pairwise([0, *ends])]
    for part in sch.loop_partition(last, sizes[:-1]):
        if step == 1 and int(sch.get(part).extent) > 1:
            sch.vectorize(part)
    return True


def condition_changes(block: s_tir.SBlock, axis: Axis) -> list[int]:
    """Return the values of ``axis`` at which a condition in ``block`` changes, ascending.

    The list is empty if nothing changes, or if a condition depends on more than ``axis``.
    """
    conditions: list[ir.Expr] = []

    def on_call(call: ir.Call) -> None:
        if getattr(call.op, "name", "").endswith(".if_then_else"):
            conditions.append(call.args[0])

    tvm_ffi.structural_walk(block.body, (ir.Call, on_call), order="post")
    changes: set[int] = set()
    for condition in conditions:
        for atom in _atoms(condition):
            if axis.var not in variables(atom):
                continue
            change = _change(atom, axis)
            if change is None:
                return []
            changes.add(change)
    return sorted(changes - {0, axis.extent})


def _atoms(condition: ir.Expr) -> list[ir.Expr]:
    """Return the comparisons that a condition combines with and, or, not."""
    if isinstance(condition, tirx.And | tirx.Or):
        return [*_atoms(condition.a), *_atoms(condition.b)]
    if isinstance(condition, tirx.Not):
        return _atoms(condition.a)
    return [condition]


def _change(atom: ir.Expr, axis: Axis) -> int | None:
    """Return where a comparison changes, 0 if nowhere in the axis, None if it is not linear."""
    if not isinstance(atom, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return None
    analyzer = sym.Analyzer()
    difference = atom.a - atom.b
    first = analyzer.simplify(_at(difference, axis.var, tirx.IntImm(axis.var.ty.dtype, 0)))
    step = analyzer.simplify(_at(difference, axis.var, axis.var + 1) - difference)
    if not (isinstance(first, tirx.IntImm) and isinstance(step, tirx.IntImm)):
        return None
    start, slope = int(first), int(step)
    # Compare start + slope * v with zero: strictly (LT, GE) or not (LE, GT).
    strict = isinstance(atom, tirx.LT | tirx.GE)
    if slope > 0:
        change = -(start // slope) if strict else -start // slope + 1
    else:
        change = start // -slope + 1 if strict else -(start // slope)
    return change if 0 < change < axis.extent else 0


def _at(expr: ir.Expr, var: tirx.Var, value: ir.Expr) -> ir.Expr:
    return tvm_ffi.structural_map(
        expr, (tirx.Var, lambda v: value if v.same_as(var) else v), order="post"
    )


def _short_parts(ends: list[int], longest: int) -> list[int]:
    """Return ``ends`` with further ends, so that no part is longer than ``longest``."""
    return [
        end
        for start, stop in itertools.pairwise([0, *ends])
        for end in [*range(start + longest, stop, longest), stop]
    ]
