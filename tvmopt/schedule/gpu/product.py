"""A sum of products made ready for a GPU: C[s, i, j] += A[s, i, k] * B[s, j, k].

Matmul in any order of its operands' axes, batched or not, and convolution (as implicit GEMM) become
one form. What surrounds the product stays where it is; templates draw it into their copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import IRModule
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.schedule.analysis import (
    Access,
    Axis,
    BlockFacts,
    block_facts,
    leaf_blocks,
    substitute,
    variables,
)

#: Elements of the longest vector that a thread moves at once, by their bytes: 16 bytes.
VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Operand:
    """One factor of the product.

    Attributes:
        index: Which of the anchor's reads it is.
        dtype: Type of its elements as they are multiplied.
        size: Bytes of the widest element in memory that it is made of.
        contiguous: The axis along which its elements lie side by side: ``"k"``, or ``"x"``, its
            data-parallel one; ``""`` when there is none.
        run: Elements along it of which each aligned group lies aligned in memory: a power of two.
        plain: Whether it is read as it is, or zero where it is padded: no arithmetic.
        padded: Whether a condition says where it is zero.
    """

    index: int
    dtype: str
    size: float
    contiguous: str
    run: int
    plain: bool
    padded: bool


@dataclasses.dataclass(frozen=True)
class Product:
    """A function whose product has the normal form.

    Attributes:
        sch: Its schedule; the operands go through copies of the normal form.
        anchor: The product; its loops are those of ``s, i, j, k``.
        extents: Of ``s, i, j, k``.
        a: The factor that has the axis ``i``.
        b: The factor that has the axis ``j``, along which results lie side by side.
        sums: Type of the sums.
        out: Type of the result.
        out_run: Elements of the result along ``j`` of which each aligned group lies aligned in
            memory: a power of two.
        read: Bytes of everything that the epilogue reads besides the sums.
        unique: Bytes of each factor in memory; a convolution reads its image many times.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    extents: tuple[int, int, int, int]
    a: Operand
    b: Operand
    sums: str
    out: str
    out_run: int
    read: int
    unique: tuple[int, int]

    def ragged(self, operand: Operand, tile: int, step: int) -> bool:
        """Whether tiles of ``operand`` reach beyond it.

        Args:
            operand: One of both.
            tile: Rows, or columns, of a tile.
            step: Elements of the reduction that every tile's part is a multiple of.
        """
        edge = self.extents[1] if operand is self.a else self.extents[2]
        return bool(edge % tile or self.extents[3] % step)

    @property
    def copies(self) -> tuple[Operand, Operand]:
        """Both factors."""
        return self.a, self.b


def normalise(func: tirx.PrimFunc) -> Product | None:
    """``func`` in the normal form, or None when it has not exactly one product of that kind.

    Before -> after::

        for y, x, o: for r, c: Y[y, x, o] += X[y + r, x, c] * W[r, c, o]

        for i, k: A[0, i, k] = X[i // W + k // C, i % W, k % C]
        for j, k: B[0, j, k] = W[k // C, k % C, j]
        for i, j: for k: S[0, i, j] += A[0, i, k] * B[0, j, k]
        for y, x, o: Y[y, x, o] = S[0, y * W + x, o]

    A product without rows, columns or reduction, of one step that no index names, is none.
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    outputs = sch.get_output_blocks("root")
    blocks = leaf_blocks(sch)
    reductions = [block for block in blocks if _reduces(sch, block)]
    if len(reductions) != 1 or len(outputs) != 1:
        return None
    (anchor,) = reductions
    _inline_views(sch, anchor)
    facts = _in_block_order(sch, anchor)
    used = _used(sch, anchor)
    kinds = _kinds(facts, used)
    if kinds is None or not is_product(sch, anchor):
        return None
    innermost = [kind for axis, kind in zip(facts.axes, kinds, strict=True) if _last(facts, axis)]
    swapped = innermost == ["i"]
    if swapped:
        kinds = [{"i": "j", "j": "i"}.get(kind, kind) for kind in kinds]
    extents = [
        math.prod(x.extent for x, kind in zip(facts.axes, kinds, strict=True) if kind == wanted)
        for wanted in "sijk"
    ]
    copies = [sch.reindex(anchor, where) for where in (("read", 0), ("read", 1), ("write", 0))]
    iters = list(sch.get(anchor).iter_vars)
    members = _members(sch, anchor)
    first, second = ("sjk", "sik") if swapped else ("sik", "sjk")
    operands = []
    for n, order in enumerate((first, second)):
        own = [kinds[m] for m in members[n]]
        operands.append(_operand(sch, copies[n], n, own, order[1]))
    output = block_facts(sch, sch.get_output_blocks("root")[0])
    last = len(output.axes) - 1
    read = _epilogue_bytes(sch, copies[2])
    for n, order in enumerate((first, second, "sij")):
        axes = [(kinds[m], iters[m].dom.extent) for m in members[n]]
        sch.transform_layout(copies[n], ("read" if n == 2 else "write", 0), _fuse(axes, order))
    whole = [(kind, iv.dom.extent) for kind, iv in zip(kinds, iters, strict=True)]
    sch.transform_block_layout(anchor, _fuse(whole, "sijk"))
    block = sch.get(anchor)
    regions = [*block.reads, *block.writes]
    if not all(isinstance(r.min, tirx.Var) for x in regions for r in x.region[1:]):
        return None  # an axis of one step that TVM has left out, which cannot be padded
    a, b = reversed(operands) if swapped else operands
    sizes = [_size(access.buffer) for access in facts.reads]
    return Product(
        sch=sch,
        anchor=anchor,
        extents=(extents[0], extents[1], extents[2], extents[3]),
        a=a,
        b=b,
        sums=str(facts.write.buffer.dtype),
        out=str(output.write.buffer.dtype),
        out_run=_run(output.write, [x.extent for x in output.axes], last) if last >= 0 else 1,
        read=read,
        unique=(sizes[a.index], sizes[b.index]),
    )


def _reduces(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    return any(iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars)


def _inline_views(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Inline what only renumbers the elements of an operand: a reshape, a transposition."""
    changed = True
    while changed:
        changed = False
        for producer in sch.get_producers(anchor):
            stores = _stores(sch, producer)
            if len(stores) == 1 and isinstance(stores[0].value, ir.TensorLoad):
                try:
                    sch.compute_inline(producer)
                    changed = True
                except ScheduleError:
                    continue


def _last(facts: BlockFacts, axis: Axis) -> bool:
    """Whether results lie side by side along ``axis``."""
    place = facts.axes.index(axis)
    return not axis.reduce and axis.extent > 1 and facts.write.strides[place] == 1


def _size(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape) * int(buffer.dtype.itemsize)


def _in_block_order(sch: s_tir.Schedule, block: SBlockRV) -> BlockFacts:
    """The facts of ``block``, its reads in the order that primitives number them in."""
    facts = block_facts(sch, block)
    order = [region.source for region in sch.get(block).reads]
    reads = [r for buffer in order for r in facts.reads if r.buffer.same_as(buffer)]
    return dataclasses.replace(facts, reads=tuple(reads))


def _used(sch: s_tir.Schedule, block: SBlockRV) -> list[set[tirx.Var]]:
    """Variables that index the reads and the write of ``block``, those of a single step too."""
    found = sch.get(block)
    regions = [*found.reads, *found.writes]
    return [set().union(*(variables(r.min) for r in region.region)) for region in regions]


def _kinds(facts: BlockFacts, used: Sequence[set[tirx.Var]]) -> list[str] | None:
    """For each axis which of ``s, i, j, k`` it belongs to; None when one belongs to none."""
    if len(facts.reads) != 2 or len(used) != 3 or facts.stores != 1 or any(facts.conditional):
        return None
    if facts.reads[0].buffer.same_as(facts.reads[1].buffer):
        return None
    in_a, in_b, in_c = used
    kinds = []
    for axis in facts.axes:
        member = axis.var in in_a, axis.var in in_b, axis.var in in_c
        if axis.reduce:
            kind = "k" if member[:2] == (True, True) else ""
        else:
            kind = {
                (True, True, True): "s",
                (True, False, True): "i",
                (False, True, True): "j",
            }.get(member, "")
        if not kind and axis.extent > 1:
            return None
        kinds.append(kind)
    # An axis of one step that some access leaves out belongs nowhere; what is missing has extent 1.
    return kinds if "k" in kinds else None


def _members(sch: s_tir.Schedule, anchor: SBlockRV) -> list[list[int]]:
    """For each reindexed access the axes that number it: not all of a single step do."""
    found = sch.get(anchor)
    places = {iv.var: n for n, iv in enumerate(found.iter_vars)}
    regions = [*found.reads, *found.writes]
    return [[places[r.min] for r in region.region] for region in regions]


def _stores(sch: s_tir.Schedule, block: SBlockRV) -> list[tirx.BufferStore]:
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(sch.get(block).body, (tirx.BufferStore, stores.append), order="post")
    return stores


def is_product(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether ``block`` adds the product of its two reads, cast or not, to what it writes."""
    (store,) = _stores(sch, block)
    value = store.value
    if not isinstance(value, tirx.Add):
        return False
    for total, product in ((value.a, value.b), (value.b, value.a)):
        if isinstance(total, ir.TensorLoad) and total.source.same_as(store.buffer):
            product = _uncast(product)
            if isinstance(product, tirx.Mul):
                return all(isinstance(_uncast(x), ir.TensorLoad) for x in (product.a, product.b))
    return False


def _uncast(value: ir.Expr) -> ir.Expr:
    while isinstance(value, tirx.Cast):
        value = value.value
    return value


def _operand(
    sch: s_tir.Schedule, copy: SBlockRV, index: int, kinds: Sequence[str], own: str
) -> Operand:
    """What the copy of an operand reads, through everything that makes it.

    Args:
        sch: The schedule.
        copy: The copy, as ``reindex`` leaves it.
        index: Which of the anchor's reads it makes.
        kinds: Kind of each of the copy's axes.
        own: The kind of its data-parallel axis, ``"i"`` or ``"j"``.
    """
    trial = sch.copy()
    block = trial.get_sblock(sch.get(copy).name_hint)
    inline_producers(trial, block)
    facts = block_facts(trial, block)
    dtype = str(facts.write.buffer.dtype)
    rank = len(facts.axes)
    reads = [r for r in facts.reads if sum(s != 0 for s in r.strides) * 2 > rank]
    best, run = "", 1
    for kind in ("k", own):
        axes = [n for n, k in enumerate(kinds) if k == kind and facts.axes[n].extent > 1]
        if axes and reads:
            found = min(aligned_run(r, facts, axes) for r in reads)
            if found > run:
                best, run = ("k" if kind == "k" else "x"), found
    if not best and reads:
        # No vectors, but neighbours should be read by neighbours.
        near = [n for n, a in enumerate(facts.axes) if a.extent > 1 and reads[0].strides[n] == 1]
        longest = max(near, key=lambda n: facts.axes[n].extent, default=-1)
        best = {"k": "k", own: "x"}.get(kinds[longest], "") if near else ""
    value = _stores(trial, block)[0].value
    plain = _is_plain(value) and all(str(r.buffer.dtype) == dtype for r in facts.reads)
    size = max([float(r.buffer.dtype.itemsize) for r in facts.reads] or [1.0])
    padded = any(call.endswith("if_then_else") for call in facts.calls)
    return Operand(index, dtype, size, best, run, plain, padded)


def _is_plain(value: ir.Expr) -> bool:
    """Whether ``value`` is a load, or one or zero as a condition says."""
    if isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith("if_then_else"):
        _, then, other = value.args
        return (
            _is_plain(then)
            and isinstance(other, tirx.IntImm | tirx.FloatImm)
            and (float(other.value) == 0.0)
        )
    return isinstance(value, ir.TensorLoad)


def aligned_run(access: Access, facts: BlockFacts, members: Sequence[int], most: int = 16) -> int:
    """Elements that an aligned group of steps of fused axes reads aligned and side by side.

    Args:
        access: Where it reads.
        facts: The block that reads.
        members: Its axes that are fused, outermost first.
        most: The longest group asked for, a power of two.

    Returns:
        A power of two; 1 when the elements are apart.
    """
    if access.strides[members[-1]] is None:
        return _divided_run(access, facts, members[-1], most)
    length = 1
    inner: set[int] = set()
    for n in reversed(members):
        # What a condition separates may not be read at once.
        if access.strides[n] != length or (inner and facts.conditional[n]):
            break
        length *= facts.axes[n].extent
        inner.add(n)
    if not inner:
        return 1
    run = math.gcd(length, most)
    while run > 1 and not _starts_aligned(access, facts, inner, run):
        run //= 2
    return run


def _divided_run(access: Access, facts: BlockFacts, index: int, most: int) -> int:
    """:func:`aligned_run` along an axis that the access divides: one that was fused before."""
    axis, run = facts.axes[index], most
    dtype = str(axis.var.ty.dtype)
    part, place = tirx.Var("part", dtype), tirx.Var("place", dtype)
    while run > 1:
        analyzer = sym.Analyzer()
        for other in facts.axes:
            analyzer.bind(other.var, ir.Range(0, other.extent))
        analyzer.bind(part, ir.Range(0, max(1, axis.extent // run)))
        analyzer.bind(place, ir.Range(0, run))
        moved = substitute(access.offset, {axis.var: part * run + place})
        start = substitute(access.offset, {axis.var: part * run})
        aligned = analyzer.simplify(start % run)
        whole = axis.extent % run == 0 and isinstance(aligned, tirx.IntImm) and int(aligned) == 0
        if whole and analyzer.can_prove_equal(moved, start + place):
            return run
        run //= 2
    return 1


def _starts_aligned(access: Access, facts: BlockFacts, inner: set[int], run: int) -> bool:
    """Whether groups of ``run`` elements along the axes ``inner`` start at multiples of ``run``."""
    analyzer = sym.Analyzer()
    start = access.offset
    for n, axis in enumerate(facts.axes):
        analyzer.bind(axis.var, ir.Range(0, axis.extent))
        if n in inner:
            start = substitute(start, {axis.var: tirx.IntImm(axis.var.ty.dtype, 0)})
    remainder = analyzer.simplify(start % run)
    return isinstance(remainder, tirx.IntImm) and int(remainder) == 0


def _run(access: Access, extents: Sequence[int], axis: int) -> int:
    """Elements along ``axis`` that one vector may take, a power of two; 1 when not contiguous."""
    if access.strides[axis] != 1:
        return 1
    others = [s for i, s in enumerate(access.strides) if i != axis and extents[i] > 1]
    if any(s is None for s in others):
        return 1
    step = math.gcd(extents[axis], *(s for s in others if s))
    return step & -step


def _epilogue_bytes(sch: s_tir.Schedule, copy: SBlockRV) -> int:
    """Bytes that what follows ``copy``, the product's result, reads besides it."""
    total, waiting = 0, [copy]
    made = [sch.get(copy).writes[0].source]
    while waiting:
        for block in sch.get_consumers(waiting.pop()):
            found = sch.get(block)
            made.append(found.writes[0].source)
            waiting.append(block)
            for region in found.reads:
                if not any(region.source.same_as(m) for m in made):
                    total += _size(region.source)
    return total


def _fuse(axes: Sequence[tuple[str, ir.Expr]], order: str) -> tirx.IndexMap:
    """The map that makes one axis of all axes of a kind, row-major; ``order`` names the kinds."""
    inputs = [tirx.Var(f"v{n}", extent.ty) for n, (_, extent) in enumerate(axes)]
    fused: dict[str, ir.Expr] = {}
    for (kind, extent), v in zip(axes, inputs, strict=True):
        if kind:
            fused[kind] = fused[kind] * extent + v if kind in fused else v
    zero = tirx.IntImm(axes[0][1].ty, 0)
    return tirx.IndexMap(inputs, [fused.get(kind, zero) for kind in order], None)


def inline_producers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Draw everything that makes what ``block`` copies into it."""
    while True:
        done = 0
        for producer in sch.get_producers(block):
            try:
                sch.compute_inline(producer)
                done += 1
            except ScheduleError:
                continue
        if not done:
            return


def inline_consumers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Draw everything that finishes what ``block`` copies out into it.

    Raises:
        ScheduleError: When something remains.
    """
    while consumers := sch.get_consumers(block):
        for consumer in consumers:
            inline_other_producers(sch, consumer, block)
        if not _inline_forward(sch, consumers):
            sch.reverse_compute_inline(consumers[0])


def _inline_forward(sch: s_tir.Schedule, blocks: Sequence[SBlockRV]) -> bool:
    """Draw each of ``blocks`` into what reads it, where that can be; whether any could."""
    done = False
    for block in blocks:
        try:
            sch.compute_inline(block)
            done = True
        except ScheduleError:
            continue
    return done


def split_reduction(sch: s_tir.Schedule, anchor: SBlockRV, parts: int) -> tuple[SBlockRV, SBlockRV]:
    """Divide the reduction into ``parts`` products of their own, and a sum of them.

    Before -> after::

        for s, i, j: for k: C[s, i, j] += A[s, i, k] * B[s, j, k]

        for p, s, i, j: for k: P[p, s, i, j] += A[s, i, p * K / 4 + k] * B[s, j, p * K / 4 + k]
        for s, i, j: for p: C[s, i, j] += P[p, s, i, j]

    Args:
        sch: The schedule.
        anchor: The product, of loops ``s, i, j, k``; ``parts`` divides the extent of ``k``.
        parts: How many, at least 2.

    Returns:
        The block of the parts, of loops ``p, s, i, j, k``, and that of their sum.
    """
    *others, k = sch.get_loops(anchor)
    part, rest = sch.split(k, [parts, None])
    sch.reorder(part, *others, rest)
    return sch.rfactor(part, 0), anchor


def finish_parts(sch: s_tir.Schedule, total: SBlockRV, vector: int, threads: int = 256) -> None:
    """Schedule the sum of the parts, with everything that follows it, as a kernel of its own.

    Args:
        sch: The schedule.
        total: The block that sums them.
        vector: Elements that a thread finishes at once.
        threads: Threads of a block.
    """
    while True:
        consumers = sch.get_consumers(total)
        if not any(sch.get_consumers(consumer) for consumer in consumers):
            break
        for consumer in consumers:
            inline_other_producers(sch, consumer, total)
        if not _inline_forward(sch, consumers):
            break
    (output,) = sch.get_consumers(total)
    inline_other_producers(sch, output, total)
    *rows, columns = sch.get_loops(output)
    width = int(sch.get(columns).extent)
    vector = math.gcd(width, vector)
    across = _share(width // vector, threads)
    outer, lane, inner = sch.split(columns, [None, across, vector])
    lanes = [lane]
    if rows:
        down = _divisor(int(sch.get(rows[-1]).extent), threads // across)
        rows[-1], row = sch.split(rows[-1], [None, down])
        lanes.insert(0, row)
        sch.reorder(*rows, outer, row, lane, inner)
    sch.bind(sch.fuse(*rows, outer), "blockIdx.x")
    thread = sch.fuse(*lanes)
    sch.bind(thread, "threadIdx.x")
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, thread, preserve_unit_loops=True)
    iters = sch.get(total).iter_vars
    loops = sch.get_loops(total)[-len(iters) :]
    reduced = [iv.iter_type == tirx.IterVar.CommReduce for iv in iters]
    part = loops[reduced.index(True)]
    last = [loop for loop, is_reduced in zip(loops, reduced, strict=True) if not is_reduced][-1]
    sch.reorder(part, last)
    if vector > 1:
        # Before the sums are set to zero apart: after that TVM proves no loop of them parallel.
        sch.vectorize(inner)
        sch.vectorize(last)
    init = sch.decompose_reduction(total, part)
    if vector > 1:
        sch.vectorize(sch.get_loops(init)[-1])


def _divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most``."""
    return max(d for d in range(1, max(1, most) + 1) if number % d == 0)


def _share(number: int, most: int) -> int:
    """Of ``number`` elements those that the threads of a block take, ``most`` of them at most.

    A divisor where there is one of some size: what does not divide must be guarded.
    """
    divisor = _divisor(number, most)
    return divisor if divisor * 4 >= min(number, most) else min(number, most)


def inline_other_producers(sch: s_tir.Schedule, block: SBlockRV, kept: SBlockRV) -> None:
    """Draw what makes the other things that ``block`` reads, besides ``kept``, into it."""
    while True:
        others = [
            producer
            for producer in sch.get_producers(block)
            if not sch.get(producer).same_as(sch.get(kept)) and not _reads(sch, producer, kept)
        ]
        if not others:
            return
        for producer in others:
            sch.compute_inline(producer)


def _reads(sch: s_tir.Schedule, block: SBlockRV, other: SBlockRV) -> bool:
    """Whether ``block`` reads, at some remove, what ``other`` makes."""
    return any(
        sch.get(producer).same_as(sch.get(other)) or _reads(sch, producer, other)
        for producer in sch.get_producers(block)
    )
