"""Products summed over an axis: matmul, dense, convolution, transposed convolution.

The register-tiled loop nest of GotoBLAS. A tile of accumulators (rows x columns of vectors) stays
in registers while the reduction runs; one operand, the weight, is loaded as vectors, the other, the
data, element by element and broadcast. The weight is packed so that the vectors of a tile follow
one another in memory in the order of use; constant weights are packed when the model is built. The
epilogue (bias, residual, activation, cast) works on the tile before it is stored.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.arch.cpu import CpuArch
from tvmopt.intrin import (
    DotIntrinsic,
    TileIntrinsic,
    dot_named,
    find_dot,
    find_tile,
    largest_step,
)

from .analysis import Access, BlockFacts, block_facts, constant_run
from .base import Template
from .hint import Hint
from .injective import schedule_injective
from .nest import (
    PREPROC,
    Dot,
    find_epilogue,
    fits,
    is_constant,
    only_reduction,
    schedule_nest,
    schedule_rest,
    unit_loops,
)
from .stage import collapse_axes, collapse_map, contiguous_tail


@dataclasses.dataclass(frozen=True)
class Form:
    """A function made ready for tiling.

    Attributes:
        sch: Its schedule: everything inlined that can be, the row axes made one where possible.
        anchor: The reduction.
        epilogue: The block that finishes the anchor's elements.
        facts: Of the anchor; its last data-parallel axis is the vectorised one.
        weight: Access of the operand that is loaded as vectors.
        data: Access of the other one.
        constant: Whether the weight is a parameter that does not change between calls.
        producers: Names of the blocks that make the data, padding mostly.
        run: Widest tile: how many steps of the vectorised axis use the same data.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    epilogue: SBlockRV
    facts: BlockFacts
    weight: Access
    data: Access
    constant: bool
    producers: tuple[str, ...]
    run: int

    def dot(self, arch: CpuArch) -> DotIntrinsic | None:
        """The instruction that multiplies the operands on ``arch``; None when it has none.

        Its products must lie side by side in the data.
        """
        found = find_dot(arch, str(self.data.buffer.dtype), str(self.weight.buffer.dtype))
        if found is None or self.contiguous < 0 or not self.data_first:
            return None
        whole = self.facts.axes[self.contiguous].extent % found.depth == 0
        steps = self.facts.reduced > found.depth  # TVM takes a loop of one step for no reduction
        return found if whole and steps and self.facts.dtype == found.sums else None

    def tile(self, arch: CpuArch) -> TileIntrinsic | None:
        """The instruction that multiplies tiles of the operands on ``arch``; None without one."""
        itemsize = self.data.buffer.dtype.itemsize
        found = find_tile(arch, str(self.data.buffer.dtype), str(self.weight.buffer.dtype))
        if found is None or self.contiguous < 0 or self.facts.dtype != found.sums:
            return None
        if not self.data_first:
            return None
        step = largest_step(self.facts.axes[self.contiguous].extent * itemsize)
        whole = self.run == self.facts.axes[self.vector].extent  # no groups
        return dataclasses.replace(found, kbytes=step) if step and whole else None

    def depth(self, arch: CpuArch) -> int:
        """Products that a lane adds up at once on ``arch``."""
        dot = self.dot(arch)
        return dot.depth if dot else 1

    def steps(self, arch: CpuArch) -> int:
        """Iterations of the innermost loop of the reduction."""
        last = self.facts.reduction[-1]
        grouped = self.depth(arch) if self.contiguous == last else 1
        return self.facts.axes[last].extent // grouped

    @property
    def data_first(self) -> bool:
        """Whether the data is the first factor, as in the definitions of the instructions."""
        return self.facts.reads[0].buffer.same_as(self.data.buffer)

    @property
    def contiguous(self) -> int:
        """Index of the reduced axis whose steps are side by side in the data; -1 without one."""
        axes = self.facts.axes
        found = [i for i in self.facts.reduction if self.data.strides[i] == 1]
        return next((i for i in found if axes[i].extent > 1), -1)

    @property
    def extents(self) -> list[int]:
        """Of the data-parallel axes."""
        return [self.facts.axes[i].extent for i in self.facts.spatial]

    @property
    def vector(self) -> int:
        """Index of the vectorised axis."""
        return self.facts.spatial[-1]

    @property
    def rows(self) -> list[int]:
        """Axes whose steps use the same weight."""
        return [i for i in self.facts.spatial if self.weight.strides[i] == 0]

    @property
    def columns(self) -> list[int]:
        """Axes whose steps use the same data; the vectorised one is the last."""
        return [
            i
            for i in self.facts.spatial
            if self.weight.strides[i] != 0 and (self.data.strides[i] == 0 or i == self.vector)
        ]


def prepare(func: tirx.PrimFunc, collapse: bool = True) -> Form | None:
    """``func`` made ready, or None when it is not one sum of products of that kind.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        collapse: Whether to make row axes one where memory allows.
    """
    found = only_reduction(func)
    if found is None:
        return None
    sch, anchor = found
    if _operands(block_facts(sch, anchor)) is None:
        return None
    epilogue = find_epilogue(sch, anchor)
    if collapse:
        _collapse_rows(sch, anchor, epilogue)
    facts = block_facts(sch, anchor)
    operands = _operands(facts)
    if operands is None:
        return None
    weight, data = operands
    vector = facts.axes[facts.spatial[-1]]
    run = vector.extent if data.strides[facts.spatial[-1]] == 0 else constant_run(data, vector)
    if run == 1:
        return None
    return Form(
        sch=sch,
        anchor=anchor,
        epilogue=epilogue,
        facts=facts,
        weight=weight,
        data=data,
        constant=is_constant(func, sch, weight),
        producers=tuple(sch.get(b).name_hint for b in sch.get_producers(anchor)),
        run=run,
    )


def _operands(facts: BlockFacts) -> tuple[Access, Access] | None:
    """The operand that has the last output axis, and the one that has not."""
    if len(facts.reads) != 2 or any(facts.conditional) or not facts.spatial:
        return None
    vector = facts.spatial[-1]
    if facts.axes[vector].extent == 1 or facts.write.strides[vector] != 1:
        return None
    reads = sorted(facts.reads, key=lambda r: r.strides[vector] in (0, None))
    weight, data = reads
    if weight.buffer.same_as(data.buffer) or None in weight.strides:
        return None
    # A grouped convolution's channel is o // outputs: constant inside a narrow enough tile.
    return (weight, data) if data.strides[vector] in (0, None) else None


def _collapse_rows(sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV) -> None:
    """Make adjacent row axes one where memory allows: y and x of a 1 x 1 convolution."""
    facts = block_facts(sch, anchor)
    operands = _operands(facts)
    assert operands is not None
    rows = [i for i in facts.spatial if operands[0].strides[i] == 0]
    # Only a run of adjacent axes, the innermost ones.
    run = [i for i in rows if set(range(i, rows[-1] + 1)) <= set(rows)]
    tail = contiguous_tail(facts, run)
    if tail is None or len(tail.axes) < 2:
        return
    index_map = collapse_map(facts, tail.axes, len(facts.spatial))
    sch.transform_layout(anchor, ("write", 0), index_map)
    collapse_axes(sch, epilogue, tail.axes)
    collapse_axes(sch, anchor, tail.axes)


class RegisterTile(Template):
    """A tile of accumulators in registers, its weight packed."""

    name = "register_tile"

    def apply(self, func: tirx.PrimFunc, hint: Hint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None when the template does not fit.

        Before -> after, for a tile of 6 rows x 2 vectors of 16::

            for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
            for m, n: Y[m, n] = relu(acc[m, n])

            for no, mo in T.parallel(...):
                for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16): acc[...] = 0
                for k:
                    for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16):
                        acc[...] += A[m, k] * P[no, k, c * 16 + v]
                for mi in T.unroll(6): for v in T.vectorized(32): Y[...] = ...
        """
        form = prepare(func)
        if form is None or not fits(hint, form.extents) or any(hint.task[-1:]):
            return None
        intrinsic = dot_named(hint.intrin) if hint.intrin else None
        if intrinsic is not None and (intrinsic != form.dot(hint.arch) or hint.pack == "none"):
            return None
        sch, anchor, epilogue = form.sch, form.anchor, form.epilogue
        lanes = intrinsic.lanes if intrinsic else hint.arch.lanes(form.facts.dtype)
        width = hint.block[-1]
        if intrinsic:
            split_reduction(sch, anchor, form.contiguous, intrinsic.depth)
        _split_vector_axis(sch, anchor, epilogue, width)
        facts = block_facts(sch, anchor)
        operands = [r for r in facts.reads if r.strides[facts.spatial[-1]] != 0]
        if len(operands) != 1:
            return None  # a group boundary inside the tile
        if hint.pack == "none":
            if width % lanes or operands[0].strides[facts.spatial[-1]] != 1:
                return None
        else:
            _pack(sch, anchor, operands[0], lanes, hint)
            facts = block_facts(sch, anchor)
        loops = sch.get_loops(anchor)
        *others, tiles, place = facts.spatial
        rows, outer, parts, ragged = [], [], [], []
        for n, i in enumerate(others):
            size = hint.task[n] if hint.task else 0
            around, row = sch.split(loops[i], [None, hint.block[n]])
            if size:
                part, around = sch.split(around, [None, size // hint.block[n]])
                parts.append(part)
            elif facts.axes[i].extent % hint.block[n]:
                ragged.append(around)
            rows.append(row)
            outer.append(around)
        reduction = [loops[i] for i in facts.reduction]
        dot = Dot(intrinsic, reduction.pop()) if intrinsic else None
        schedule_nest(
            sch,
            anchor,
            epilogue,
            hint,
            units=unit_loops(facts, loops),
            outer=[*outer, loops[tiles], *parts],
            reduction=reduction,
            rows=rows,
            vectors=sch.split(loops[place], [None, lanes]),
            ragged=ragged,
            dot=dot,
        )
        schedule_rest(sch, hint)
        return sch


def split_reduction(sch: s_tir.Schedule, anchor: SBlockRV, axis: int, depth: int) -> None:
    """Number groups of ``depth`` products and the products of a group apart, these innermost.

    Before -> after, for a depth of 4::

        for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
        for m, n: for ko: for ki: acc[m, n] += A[m, ko * 4 + ki] * B[ko * 4 + ki, n]
    """

    def split(*indices: tirx.Var) -> list[tirx.Expr]:
        k = indices[axis]
        return [*indices[:axis], k // depth, *indices[axis + 1 :], k % depth]

    rank = len(block_facts(sch, anchor).axes)
    sch.transform_block_layout(anchor, tirx.IndexMap.from_func(split, ndim=rank))


def _split_vector_axis(
    sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV, width: int
) -> None:
    """Number tiles and places in a tile apart: o -> (o // width, o % width)."""
    facts = block_facts(sch, anchor)
    last, rank = facts.spatial[-1], len(facts.axes)

    def write(*indices: tirx.Var) -> list[tirx.Expr]:
        return [*indices[:-1], indices[-1] // width, indices[-1] % width]

    def axes(*indices: tirx.Var) -> list[tirx.Expr]:
        o = indices[last]
        return [*indices[:last], o // width, o % width, *indices[last + 1 :]]

    # The axes first: TVM simplifies an index of the new layout, but not one of new axes, and then
    # computes the wrong part of the epilogue.
    sch.transform_block_layout(anchor, tirx.IndexMap.from_func(axes, ndim=rank))
    consumer = len(block_facts(sch, epilogue).axes)
    sch.transform_block_layout(epilogue, tirx.IndexMap.from_func(write, ndim=consumer))
    sch.transform_layout(
        anchor, ("write", 0), tirx.IndexMap.from_func(write, ndim=len(facts.spatial))
    )


def _pack(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    weight: Access,
    lanes: int,
    hint: Hint,
) -> None:
    """Copy the weight into the order of use: tile, reduction, place in the tile, zeros at its end.

    Before -> after, for tiles of 40 columns on 16 lanes::

        for m, no, ni: for k: acc[m, no, ni] += A[m, k] * B[k, no * 40 + ni]

        for no, k, ni: P[no, k, ni] = if ni < 40: B[k, no * 40 + ni] else 0     (48 wide)
        for m, no, ni: for k: acc[m, no, ni] += A[m, k] * P[no, k, ni]

    The products of a dot-product instruction lie side by side: ``P[no, k // 4, ni, k % 4]``.
    """
    facts = block_facts(sch, anchor)
    multiples = [lanes if i == facts.spatial[-1] else 1 for i in range(len(facts.axes))]
    copy = copy_weight(sch, anchor, weight, multiples)
    order = _packed_order(sch, anchor, copy, bool(hint.intrin))
    if order != sorted(order):

        def permute(*indices: tirx.Var) -> list[tirx.Var]:
            return [indices[d] for d in order]

        index_map = tirx.IndexMap.from_func(permute, ndim=len(order))
        sch.transform_layout(copy, ("write", 0), index_map)
        sch.transform_block_layout(copy, index_map)
    if hint.pack == "constant":
        sch.annotate(copy, PREPROC, True)
    else:
        schedule_injective(sch, copy, hint)


def copy_weight(
    sch: s_tir.Schedule, anchor: SBlockRV, weight: Access, multiples: list[int]
) -> SBlockRV:
    """Copy the weight into a buffer with one dimension an axis; round axes up, zeros at the end.

    The data is copied as well where an axis of its own is rounded up.

    Args:
        sch: The schedule.
        anchor: The sum of products.
        weight: The operand to copy.
        multiples: For each axis of ``anchor`` what its extent must be a multiple of.

    Returns:
        The block that copies the weight.
    """
    copy = sch.reindex(anchor, ("read", _read_index(sch, anchor, weight)))
    facts = block_facts(sch, anchor)
    short = [i for i, a in enumerate(facts.axes) if a.extent % multiples[i]]
    if not short:
        return copy
    written = sch.get(copy).writes[0].source
    packed = next(r for r in facts.reads if r.buffer.same_as(written))
    data = next(r for r in facts.reads if not r.buffer.same_as(written))
    view = sch.reindex(anchor, ("read", _read_index(sch, anchor, data)))
    sch.pad_einsum(anchor, multiples)
    (crop,) = sch.get_consumers(anchor)
    sch.compute_inline(view)  # into the padded data where there is some, else into the sum
    sch.compute_inline(crop)
    if all(packed.strides[i] == 0 for i in short):
        return copy
    (padded,) = sch.get_consumers(copy)
    sch.compute_inline(copy)
    return padded


def _read_index(sch: s_tir.Schedule, anchor: SBlockRV, access: Access) -> int:
    buffers = [region.source for region in sch.get(anchor).reads]
    return next(n for n, buffer in enumerate(buffers) if buffer.same_as(access.buffer))


def _packed_order(
    sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV, products: bool
) -> list[int]:
    """Dimensions of the copy: data-parallel ones, reduced ones in loop order, place in the tile.

    With ``products`` the last reduced one comes after all others.
    """
    facts = block_facts(sch, anchor)
    axis_of = dimension_axes(sch, anchor, copy)
    vector = facts.spatial[-1]

    def rank(dimension: int) -> tuple[int, int]:
        i = axis_of.get(dimension, -1)
        if i == vector:
            return 2, 0
        if products and i == facts.reduction[-1]:
            return 3, 0
        return (1 if i >= 0 and facts.axes[i].reduce else 0), i

    return sorted(range(len(sch.get(copy).writes[0].source.shape)), key=rank)


def dimension_axes(sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV) -> dict[int, int]:
    """For each dimension of what :func:`copy_weight` made, the axis of ``anchor`` behind it."""
    facts = block_facts(sch, anchor)
    buffer = sch.get(copy).writes[0].source
    read = next(r for r in facts.reads if r.buffer.same_as(buffer))
    shape = [int(e) for e in buffer.shape]
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    axis_of: dict[int, int] = {}
    for d, (extent, step) in enumerate(zip(shape, steps, strict=True)):
        for i, axis in enumerate(facts.axes):
            if i not in axis_of.values() and axis.extent == extent and read.strides[i] == (
                step if extent > 1 else 0
            ):
                axis_of[d] = i
                break
    return axis_of
