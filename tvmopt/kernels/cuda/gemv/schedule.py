"""GEMV (matrix times a vector or a few rows): the weight is read once, in wide, early loads."""

from __future__ import annotations

import dataclasses
import math

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts, constant_run
from tvmopt.kernels.cuda.common.inlining import one_reduction
from tvmopt.kernels.cuda.common.loops import fuse_all, index_map, unrolled, with_epilogue
from tvmopt.kernels.cuda.common.vectors import cache_reads, load_at
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.workload import Refusal

# Rows of the activation up to which a matmul counts as GEMV.
MAX_ROWS = 8


@dataclasses.dataclass
class GemvForm:
    """A matmul of a weight with few rows of activation.

    Attributes:
        sch: Its schedule, everything inlined. The last axis of the matmul is the reduction; the
            values packed in one word have a separate axis after it.
        block: Name of the matmul block.
        epilogue: Name of the block that stores the output.
        packed: Values in one word of the weight; 1 for a plain weight.
        rows: Axes of the matmul that index the weight.
        batch: Spatial axes that do not index the weight.
        weight: The access to the weight.
        facts: Facts of the matmul block.
    """

    sch: s_tir.Schedule
    block: str
    epilogue: str
    packed: int
    rows: list[int]
    batch: list[int]
    weight: Access
    facts: BlockFacts


def prepare_gemv(func: tirx.PrimFunc) -> GemvForm | Refusal:
    """Return the GEMV form of ``func``, whose weight must be contiguous along K."""
    found = one_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, facts = found
    deep = [i for i in facts.reduction if facts.axes[i].extent > 1]
    if len(deep) != 1 or len(facts.reads) < 2 or any(facts.conditional):
        return Refusal("not a matrix-vector product along one axis")
    k = deep[0]
    weight = max(facts.reads, key=lambda r: math.prod(int(e) for e in r.buffer.shape))
    packed = 1
    if weight.strides[k] is None and "int" in str(weight.buffer.dtype):
        packed = constant_run(weight, facts.axes[k])
        if packed == 1:
            return Refusal("its weight is indexed by a quotient that no packed word explains")
        block = sch.get_sblock(facts.name)

        def unpack(*indices: tirx.Var) -> list[ir.Expr]:
            return [*indices[:k], indices[k] // packed, *indices[k + 1 :], indices[k] % packed]

        sch.transform_block_layout(block, index_map(sch, block, unpack))
        facts = block_facts(sch, block)
        weight = next(r for r in facts.reads if r.buffer.same_as(weight.buffer))
    if weight.strides[k] != 1:
        return Refusal("its weight is not contiguous along K")
    spatial = [i for i, a in enumerate(facts.axes) if not a.reduce and a.extent > 1]
    rows = [i for i in spatial if weight.strides[i] != 0]
    batch = [i for i in spatial if weight.strides[i] == 0]
    if math.prod(facts.axes[i].extent for i in batch) > MAX_ROWS or not rows:
        return Refusal(f"not a matrix times at most {MAX_ROWS} vectors")
    end = with_epilogue(sch, sch.get_sblock(facts.name))
    epilogue = sch.get(end).name_hint
    facts = block_facts(sch, sch.get_sblock(facts.name))
    return GemvForm(sch, facts.name, epilogue, packed, rows, batch, weight, facts)


NAME = "gpu_gemv"


def emit(func: tirx.PrimFunc, config: GemvConfig) -> s_tir.Schedule | Refusal:
    """Schedule the GEMV ``func``.

    Before -> after, with 32 threads a row, 4 rows a block and vectors of 8::

        for n: for k: y[n] += W[n, k] * x[k]

        for b in blockIdx.x, r in threadIdx.y, t in threadIdx.x:
            for ko: W_local[0:8] = W[...]; x_local[0:8] = x[...]; for v: part += ...
            y[b * 4 + r] = allreduce(part) over t
    """
    form = prepare_gemv(func)
    if isinstance(form, Refusal):
        return form
    sch, facts = form.sch, form.facts
    block = sch.get_sblock(form.block)
    depth = next(i for i in facts.reduction if form.weight.strides[i] == 1)
    vector = math.gcd(config.vector_elements, facts.axes[depth].extent)
    rows = math.prod(facts.axes[i].extent for i in form.rows)
    each = math.gcd(rows, config.rows_per_thread)
    loops = sch.get_loops(block)
    units = [loops[i] for i, a in enumerate(facts.axes) if a.extent == 1]
    batch = [loops[i] for i in form.batch]
    last = [loops[-1]] if form.packed > 1 else []
    sch.reorder(*units, *(loops[i] for i in form.rows), *batch, loops[depth], *last)
    row = fuse_all(sch, [*units, *(loops[i] for i in form.rows)])
    grid, place, own = sch.split(row, [None, config.threads, each])
    pieces, lane = sch.split(loops[depth], [facts.axes[depth].extent // vector, vector])
    step, thread = sch.split(pieces, [None, config.reduce_threads])
    partial = sch.rfactor(thread, 0)
    inside = sch.get_loops(partial)
    grid, place, own, *batch = inside[: 3 + len(batch)]
    step, thread, lane, *last = inside[3 + len(batch) :]
    sch.reorder(grid, place, thread, step, own, *batch, lane, *last)
    sch.bind(grid, "blockIdx.x")
    sch.bind(place, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    sch.set_scope(partial, 0, "local")
    copies = _loads(sch, partial, form, vector)
    step = unrolled(sch, step, config.unroll)
    load_at(sch, copies, step)
    first = sch.get_loops(partial)[3]
    for loop in sch.get_loops(partial)[-(2 + len(batch) + len(last)) :]:
        sch.unroll(loop)
    init = sch.decompose_reduction(partial, first)
    for loop in sch.get_loops(init)[3:]:
        sch.unroll(loop)
    _finish(sch, block, form.epilogue)
    return sch


def _loads(sch: s_tir.Schedule, block: SBlockRV, form: GemvForm, vector: int) -> list[SBlockRV]:
    """Load weight and activations into registers, as vectors."""
    facts = block_facts(sch, block)
    weight = next(r for r in facts.reads if r.buffer.same_as(form.weight.buffer))
    copies = cache_reads(sch, block, max(i for i, s in enumerate(weight.strides) if s == 1), vector)
    if form.packed > 1:
        copies += cache_reads(sch, block, len(facts.axes) - 1, math.gcd(form.packed, 8))
    return copies


def _finish(sch: s_tir.Schedule, block: SBlockRV, epilogue: str) -> None:
    """Reduce the threads' partial sums and apply the epilogue."""
    _, place = sch.get_loops(sch.get_producers(block)[0])[:2]
    sch.reverse_compute_at(block, place, preserve_unit_loops=True)
    _, _, thread, *spatial = sch.get_loops(block)
    if spatial:
        sch.reorder(*spatial, thread)
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(sch.get_sblock(epilogue), place, preserve_unit_loops=True)
