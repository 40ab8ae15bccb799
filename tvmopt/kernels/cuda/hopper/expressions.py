"""Analysis of a fused TensorIR PrimFunc: its blocks, inlining, and affine indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

_DATA_PARALLEL, _REDUCE = 0, 2  # tirx.IterVar.iter_type


class NotThisForm(Exception):  # noqa: N818
    """A PrimFunc does not match a pattern; the message says why."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One block that stores each element of a buffer.

    Attributes:
        name: Name hint.
        axes: Block variables.
        extents: Their extents, ints or expressions.
        reduce: For each variable, whether it is a reduction axis.
        buffer: The buffer that is written.
        indices: The indices that are written.
        value: The stored value; of a reduction, the addend.
    """

    name: str
    axes: tuple[tirx.Var, ...]
    extents: tuple[Any, ...]
    reduce: tuple[bool, ...]
    buffer: Any
    indices: tuple[Any, ...]
    value: Any

    @property
    def parallel(self) -> list[tirx.Var]:
        """Spatial (data-parallel) variables."""
        return [v for v, r in zip(self.axes, self.reduce, strict=True) if not r]

    def extent(self, axis: tirx.Var) -> Any:
        """Return the extent of one variable."""
        return next(e for v, e in zip(self.axes, self.extents, strict=True) if v.same_as(axis))


def stages(func: tirx.PrimFunc) -> list[Stage]:
    """Return the blocks of a PrimFunc from LegalizeOps or FuseTIR, in program order.

    Raises:
        NotThisForm: When the PrimFunc has another structure.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotThisForm("no root block")
    body = func.body.block.body
    return [_stage(leaf) for leaf in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]


def _stage(stmt: Any) -> Stage:
    """Return the block of one loop nest."""
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize):
        raise NotThisForm(f"a {type(stmt).__name__} outside of any block")
    block = stmt.block
    name = str(block.name_hint)
    if len(stmt.iter_values) != len(loops) or not all(
        value.same_as(loop.loop_var) for value, loop in zip(stmt.iter_values, loops, strict=True)
    ):
        raise NotThisForm(f"block {name!r} does not have one loop an axis")
    if block.match_buffers or block.alloc_buffers or not is_one(stmt.predicate):
        raise NotThisForm(f"block {name!r} is conditional, or has buffers of its own")
    if any(iv.iter_type not in (_DATA_PARALLEL, _REDUCE) for iv in block.iter_vars):
        raise NotThisForm(f"block {name!r} has an opaque axis")
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise NotThisForm(f"block {name!r} is not made of one store")
    reduce = tuple(iv.iter_type == _REDUCE for iv in block.iter_vars)
    value = store.value
    if any(reduce):
        value = _added(block, store)
    return Stage(
        name,
        tuple(iv.var for iv in block.iter_vars),
        tuple(number(iv.dom.extent) for iv in block.iter_vars),
        reduce,
        store.buffer,
        tuple(store.indices),
        value,
    )


def _added(block: Any, store: tirx.BufferStore) -> Any:
    """Return the addend of a sum reduction block."""
    name = str(block.name_hint)
    init = block.init
    if not isinstance(init, tirx.BufferStore) or not is_zero(init.value):
        raise NotThisForm(f"block {name!r} is not a sum that begins with zero")
    value = store.value
    if isinstance(value, tirx.Add):
        for old, new in ((value.a, value.b), (value.b, value.a)):
            if isinstance(old, ir.TensorLoad) and old.source.same_as(store.buffer):
                return new
    raise NotThisForm(f"block {name!r} is not a sum")


def number(extent: Any) -> Any:
    """Return a constant as int, anything else unchanged."""
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def is_one(value: Any) -> bool:
    """Whether a condition is the constant true."""
    return (isinstance(value, bool) and value) or (
        isinstance(value, tirx.IntImm) and int(value) == 1
    )


def is_zero(value: Any) -> bool:
    """Whether an expression is a constant zero of any dtype."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and float(value.value) == 0.0


class Inliner:
    """Replace loads from intermediate buffers by the expressions that their blocks compute."""

    def __init__(self, found: Sequence[Stage], keep: Any) -> None:
        self._stages = [s for s in found if not s.buffer.same_as(keep)]

    def __call__(self, expr: Any) -> Any:
        """Return ``expr`` in terms of the parameters and the buffer to keep."""

        def on_load(load: Any) -> Any:
            for stage in self._stages:
                if load.source.same_as(stage.buffer):
                    return self(self._value(stage, tuple(load.indices)))
            return load

        return tvm_ffi.structural_map(expr, (ir.TensorLoad, on_load), order="post")

    def _value(self, stage: Stage, indices: tuple[Any, ...]) -> Any:
        """Return the value of a block's output at ``indices``."""
        if any(stage.reduce):
            raise NotThisForm(f"more than one sum: {stage.name!r}, too")
        values: dict[Any, Any] = {}
        for target, index in zip(stage.indices, indices, strict=True):
            if isinstance(target, tirx.IntImm):
                continue
            if not isinstance(target, tirx.Var) or target in values:
                raise NotThisForm(f"block {stage.name!r} does not write its elements in order")
            values[target] = index
        for axis, extent in zip(stage.axes, stage.extents, strict=True):
            if axis not in values:
                if extent != 1:
                    raise NotThisForm(f"block {stage.name!r} writes elements more than once")
                values[axis] = tirx.IntImm(str(axis.ty.dtype), 0)
        return replace(stage.value, values)


def replace(expr: Any, values: dict[Any, Any]) -> Any:
    """Return ``expr`` with variables replaced by expressions."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: values.get(v, v)), order="post")


def loads(expr: Any) -> list[Any]:
    """Return all loads in ``expr``."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return found


def linear(
    expr: Any, axes: Sequence[tirx.Var], extents: Sequence[Any]
) -> tuple[dict[Any, int], int]:
    """Decompose an affine index: sum of axis * coefficient, plus an offset.

    Axes of extent 1 count as zero.

    Returns:
        The nonzero coefficients by axis, and the offset.

    Raises:
        NotThisForm: When the index is not affine in ``axes``.
    """
    analyzer = sym.Analyzer()
    zeros = {a: tirx.IntImm(str(a.ty.dtype), 0) for a in axes}
    ones = {a: z for (a, z), e in zip(zeros.items(), extents, strict=True) if number(e) == 1}
    expr = replace(expr, ones)
    factors: dict[Any, int] = {}
    for axis in axes:
        if axis in ones:
            continue
        step = analyzer.simplify(replace(expr, {axis: axis + 1}) - expr)
        if not isinstance(step, tirx.IntImm):
            raise NotThisForm("an index that is no sum of axes")
        if int(step):
            factors[axis] = int(step)
    rest = analyzer.simplify(replace(expr, zeros))
    if not isinstance(rest, tirx.IntImm):
        raise NotThisForm("an index that is no sum of axes and a number")
    return factors, int(rest)
