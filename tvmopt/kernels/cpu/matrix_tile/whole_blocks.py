"""Make blocks of a fixed number of rows cover any number of rows: the last block starts earlier.

before -> after, 19 rows in blocks of 16::

    for p in 19: for k: C[p] += A[p, k] * B[k]
    for p in 19: Y[p] = relu(C[p])

    for p in 32: for k: C[p] += A[f(p), k] * B[k]      # C has 32 rows
    for p in 32: Y[f(p)] = relu(C[p])
    # f(p) = min(p // 16 * 16, 3) + p % 16: rows 0 to 15, then 3 to 18

Rows that lie in two blocks are computed twice, perhaps by two threads, and written with the same
values. Matrix tiles need whole blocks; zero-padding, the other way to have them, copies the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import block_facts, substitute
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.rewrite import block_with, with_accesses, with_root
from tvmopt.kernels.scheduled import REWRITTEN_ATTR


def can_overlap(form: ContractionForm) -> bool:
    """Return whether blocks may overlap: the epilogue writes the result of the function.

    TVM must prove that a stage's input is written whole, and cannot where blocks overlap.
    """
    result = block_facts(form.sch, form.epilogue).write.buffer
    return result in set(form.sch.mod["main"].params)


def with_whole_blocks(
    form: ContractionForm, sizes: Mapping[int, int]
) -> tuple[s_tir.Schedule, SBlockRV, SBlockRV]:
    """Return a schedule with whole blocks of rows, its anchor and its epilogue.

    Args:
        form: The contraction.
        sizes: Rows of a block by axis of the anchor, at most the axis's extent.
    """
    sch, facts = form.sch, form.facts
    partial = [i for i, size in sizes.items() if facts.axes[i].extent % size]
    if not partial:
        return sch, form.anchor, form.epilogue
    rows: dict[tirx.Var, _RowBlocks] = {}
    places = [facts.spatial.index(i) for i in partial]
    for block in (form.anchor, form.epilogue):
        axes = [axis for axis in block_facts(sch, block).axes if not axis.reduce]
        for place in places:
            axis = axes[place]
            rows[axis.var] = _RowBlocks(axis.var, axis.extent, sizes[facts.spatial[place]])
    names = [sch.get(block).name_hint for block in (form.anchor, form.epilogue)]
    inner = facts.write.buffer
    shape = list(inner.shape)
    for place in places:
        shape[place] = rows[facts.axes[facts.spatial[place]].var].whole
    wide = tirx.decl_buffer(shape, str(inner.dtype), inner.name, scope=inner.scope(), layout=None)
    main = _WholeBlocks(rows, inner, wide).applied(sch.mod["main"])
    made = s_tir.Schedule(IRModule({"main": main.with_attr(REWRITTEN_ATTR, True)}))
    return made, *map(made.get_sblock, names)


@dataclasses.dataclass(frozen=True)
class _RowBlocks:
    """An axis of rows in blocks: its variable, its extent, and the rows of a block."""

    var: tirx.Var
    extent: int
    size: int

    @property
    def whole(self) -> tirx.IntImm:
        """Rows in whole blocks."""
        return tirx.IntImm(str(self.var.ty.dtype), -(-self.extent // self.size) * self.size)

    @property
    def row(self) -> ir.Expr:
        """The row of the image, or of the matrix."""
        last = tirx.IntImm(str(self.var.ty.dtype), self.extent - self.size)
        return tirx.min(self.var // self.size * self.size, last) + self.var % self.size


@dataclasses.dataclass(frozen=True)
class _WholeBlocks:
    """Extend blocks of ``rows``; the accumulators move from ``inner`` to the buffer ``wide``."""

    rows: Mapping[tirx.Var, _RowBlocks]
    inner: tirx.Buffer
    wide: tirx.Buffer

    def applied(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return ``func`` with the extended blocks."""
        loops: dict[tirx.Var, _RowBlocks] = {}

        def on_realize(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
            block = realize.block
            if not any(axis.var in self.rows for axis in block.iter_vars):
                return realize
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
                if axis.var in self.rows:
                    loops[value] = self.rows[axis.var]
            return s_tir.SBlockRealize(realize.iter_values, realize.predicate, self._block(block))

        def on_loop(loop: tirx.For) -> tirx.For:
            rows = loops.get(loop.loop_var)
            if rows is None:
                return loop
            return tirx.For(loop.loop_var, loop.min, rows.whole, loop.kind, loop.body)

        callbacks = [(s_tir.SBlockRealize, on_realize), (tirx.For, on_loop)]
        moved = func.with_body(tvm_ffi.structural_map(func.body, callbacks, order="post"))
        allocated = func.body.block.alloc_buffers
        buffers = [self.wide if b.same_as(self.inner) else b for b in allocated]
        return with_root(moved, alloc_buffers=buffers)

    def _block(self, block: s_tir.SBlock) -> s_tir.SBlock:
        axes = []
        for axis in block.iter_vars:
            rows = self.rows.get(axis.var)
            dom = axis.dom if rows is None else ir.Range.from_min_extent(0 * rows.whole, rows.whole)
            axes.append(tirx.IterVar(dom, axis.var, axis.iter_type))
        return block_with(
            block,
            iter_vars=axes,
            reads=[self._region(region) for region in block.reads],
            writes=[self._region(region) for region in block.writes],
            body=self._moved(block.body),
            init=None if block.init is None else self._moved(block.init),
        )

    def _region(self, region: ir.TensorRegion) -> ir.TensorRegion:
        if region.source.same_as(self.inner):
            return tirx.BufferRegion(self.wide, list(region.region))
        parts = [ir.Range.from_min_extent(self._moved(p.min), p.extent) for p in region.region]
        return tirx.BufferRegion(region.source, parts)

    def _moved(self, node: Any) -> Any:
        """Return ``node`` with rows of the image; the accumulators keep their indices."""
        kept = {var: tirx.Var(var.name, var.ty) for var in self.rows}

        def widened(
            buffer: tirx.Buffer, indices: Sequence[ir.Expr]
        ) -> tuple[tirx.Buffer, list[ir.Expr]] | None:
            if not buffer.same_as(self.inner):
                return None
            return self.wide, [substitute(index, kept) for index in indices]

        node = with_accesses(node, widened)
        node = substitute(node, {var: rows.row for var, rows in self.rows.items()})
        return substitute(node, {place: var for var, place in kept.items()})
