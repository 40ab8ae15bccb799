"""Match functions that reduce contiguous rows to the form of the row reduction template."""

from __future__ import annotations

import dataclasses
import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, all_facts, block_facts, leaf_blocks
from tvmopt.kernels.cuda.common.inlining import inline_all, output_block, spatial_extent
from tvmopt.kernels.cuda.common.loops import index_map
from tvmopt.kernels.cuda.common.vectors import most_lanes
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass
class RowForm:
    """An inlined function that reduces rows.

    Attributes:
        sch: Its schedule.
        reductions: Names of the reductions, in order.
        last: Name of the output block after them.
        rows: Number of rows.
        columns: Elements of a row.
        wide: Whether the output has an element for each input element, not one for each row.
        vector: Most elements of a vector load.
        parts: Rows that share one axis of the output; 1 where each has its own.
    """

    sch: s_tir.Schedule
    reductions: list[str]
    last: str
    rows: int
    columns: int
    wide: bool
    vector: int
    parts: int

    @property
    def crosses(self) -> bool:
        """Whether several rows share one axis of the output."""
        return self.parts > 1


def prepare_rows(func: tirx.PrimFunc) -> RowForm | Refusal:
    """Return the row reduction form of ``func``, whose reductions must share the rows."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    for block in leaf_blocks(sch):
        _drop_last_units(sch, block)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if not found or last is None:
        return Refusal("it has no reduction or several outputs")
    final = block_facts(sch, last)
    if final.reduction:
        # TVM's cross-thread reductions may store past the last row; the copy's stores do not.
        last = sch.cache_write(last, 0, "local")
        final = block_facts(sch, last)
        blocks = all_facts(sch)
        found = [f for f in blocks if f.reduction]
    if any(not f.reduction and f.name != final.name for f in blocks):
        return Refusal("a block between its reductions cannot be inlined")
    columns, rows = found[0].reduced, spatial_extent(found[0])
    if columns == 1 or any(f.reduced != columns or spatial_extent(f) != rows for f in found):
        return Refusal("its reductions do not share rows of several elements")
    if final.work not in (rows, rows * columns):
        return Refusal("its output has neither an element a row nor one for each input element")
    vector = 16
    for facts in blocks:
        inner = len(facts.axes) - 1
        if facts.reduction:
            inner = facts.reduction[-1]
            if inner != len(facts.axes) - 1:
                return Refusal("its reductions are not along the last axis")
            walked = [r for r in facts.reads if any(r.strides[i] != 0 for i in facts.reduction)]
            largest = max(walked, key=_elements, default=None)
            if largest is None or not _is_row(facts, largest):
                return Refusal("its rows are not contiguous")
        elif facts.work == rows:
            continue
        for access in (*facts.reads, facts.write):
            if access.strides[inner] == 1:
                end = math.gcd(int(access.buffer.shape[-1]), facts.axes[inner].extent)
                most = most_lanes(access.buffer.dtype)
                if reads_rows(access, rows * columns):  # others, such as a scale, are in cache
                    most = min(16 // int(access.buffer.dtype.itemsize), most)
                vector = min(vector, math.gcd(end, most))
    wide = final.work == rows * columns
    parts = 1
    if wide:
        before = 1
        for axis in final.axes:
            if before < rows < before * axis.extent:
                parts = rows // before
            before *= axis.extent
    return RowForm(
        sch, [f.name for f in found], final.name, rows, columns, wide, max(1, vector), parts
    )


def _drop_last_units(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Drop trailing unit axes, as of images one pixel wide."""
    axes = block_facts(sch, block).axes
    kept = max((i for i, axis in enumerate(axes) if axis.extent > 1), default=len(axes) - 1) + 1
    if kept < len(axes):
        how = index_map(sch, block, lambda *indices: list(indices[:kept]))
        sch.transform_block_layout(block, how)


def reads_rows(access: Access, elements: int) -> bool:
    """Whether ``access`` is of all rows, of ``elements`` in total, not of a row that all share."""
    return _elements(access) >= elements


def _elements(read: Access) -> int:
    return math.prod(int(extent) for extent in read.buffer.shape)


def _is_row(facts: BlockFacts, read: Access) -> bool:
    """Whether the reduction axes read ``read`` contiguously."""
    step = 1
    for i in reversed(facts.reduction):
        if facts.axes[i].extent > 1 and read.strides[i] != step:
            return False
        step *= facts.axes[i].extent
    return True
