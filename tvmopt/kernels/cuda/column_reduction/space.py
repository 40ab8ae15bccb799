"""Enumerate configurations of column reductions, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import all_facts
from tvmopt.kernels.cuda.column_reduction.column_walk import NAME as WALK_NAME
from tvmopt.kernels.cuda.column_reduction.column_walk import WalkForm
from tvmopt.kernels.cuda.column_reduction.config import (
    ColumnWalkConfig,
    CudaColumnReductionConfig,
)
from tvmopt.kernels.cuda.column_reduction.schedule import NAME, ColumnForm
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.vectors import WIDEST_VECTOR, widest
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.ranked import Ranked


def column_reduction_hints(
    form: ColumnForm, arch: CudaArch
) -> list[Ranked[CudaColumnReductionConfig]]:
    """Return the ``gpu_column_reduction`` configurations for ``form``, fastest predicted first."""
    facts = form.facts
    columns = facts.axes[form.columns].extent
    others = facts.work // columns // facts.reduced
    most = math.gcd(columns, min(8, WIDEST_VECTOR // widest(facts)))
    work, moved = float_work(form.sch, facts.name), traffic(facts)
    ranked = []
    for vector, x, y, split, unroll, tree in itertools.product(
        sorted({most, max(1, most // 2), 1}),
        (4, 8, 16, 32, 64, 128),
        (1, 4, 8, 16, 32, 64),
        (1, 2, 4, 8, 16, 32, 64, 128),
        (1, 4, 8),
        (False, True),
    ):
        if not 64 <= x * y <= 1024 or x > 2 * max(1, columns // vector):
            continue
        if split * y > facts.reduced or facts.reduced % split:
            continue
        if tree and (y == 1 or vector > 2):
            continue
        grid = others * math.ceil(columns / vector / x) * split
        if split > 1 and grid > 4 * arch.sms * (1024 // (x * y)):
            continue
        steps = math.ceil(facts.reduced / split / y)
        if unroll > 1 and (unroll > steps or steps % unroll):
            continue
        config = CudaColumnReductionConfig(NAME, arch, x, y, vector, split, tree, unroll)
        stream = _columns(form, config, grid, steps, work, moved)
        # Columns are launched as fast as rows, which have this constant fitted in CUDA graphs.
        faster = arch.costs.launch_cycles - arch.costs.row_launch_cycles
        cycles = stream.cycles(arch) - faster
        if split > 1:
            second = StreamCost(
                blocks=math.ceil(columns * others / 128),
                threads=128,
                compulsory_bytes=4.0 * columns * others * (split + 1),
                in_flight_bytes=4.0 * min(8, split),
                instructions=30.0 + 4.0 * split,
                load_rounds=split / 4.0,
            )
            cycles += second.cycles(arch) - faster
        ranked.append(Ranked(config, cycles, stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _columns(
    form: ColumnForm,
    config: CudaColumnReductionConfig,
    grid: int,
    steps: int,
    work: float,
    moved: float,
) -> StreamCost:
    """Return the cost model's view of the main kernel."""
    x, y, vector = config.threads, config.reduce_threads, config.vector_elements
    size = max(int(r.buffer.dtype.itemsize) for r in form.facts.reads)
    unroll, tree = config.unroll, config.tree
    # Row pieces of a warp that are shorter than a line cost time; so do, as measured, many
    # accumulators of a thread.
    piece = x * vector * size
    costs = config.arch.costs
    line = min(1.0, piece / config.arch.sector) * min(1.0, piece / config.arch.line) ** 0.1
    line /= 1.0 + costs.accumulator_time_share * vector
    return StreamCost(
        blocks=grid,
        threads=x * y,
        compulsory_bytes=moved / line,
        in_flight_bytes=float(vector * size * unroll),
        instructions=costs.reduction_instructions
        + steps * (vector * work + 6.0)
        + (vector * 10.0 * math.log2(max(2, y)) if tree else vector * 2.0 + 4.0 * vector),
        wait_cycles=0.0 if y == 1 else (vector * 40.0 * math.log2(y) if tree else 60.0 + 14.0 * y),
        load_rounds=math.ceil(steps / unroll) * 0.7,
        registers=32 + vector + vector * size // 4 * unroll,
        smem_bytes=0 if y == 1 else 4 * x * vector * y,
    )


def column_walk_hints(form: WalkForm, arch: CudaArch) -> list[Ranked[ColumnWalkConfig]]:
    """Return the ``gpu_column_walk`` configurations for ``form``, fastest predicted first."""
    blocks = all_facts(form.sch)
    passes = [f for f in blocks if f.work > form.count] or blocks  # columns of one element
    size = max(int(r.buffer.dtype.itemsize) for f in passes for r in f.reads)
    each = sum(4.0 + 2.0 * len(f.reads) + float_work(form.sch, f.name) for f in passes)
    line = 0.25
    if not form.columns or any(r.strides[form.columns[-1]] == 1 for r in form.last.reads):
        line = 1.0
    ranked = []
    for threads, unroll in itertools.product((32, 64, 128, 256), (1, 4, 8)):
        if unroll > form.depth:
            continue
        flying = unroll if form.depth % unroll == 0 else 1
        stream = StreamCost(
            blocks=math.ceil(form.count / threads),
            threads=threads,
            compulsory_bytes=max(traffic(f) for f in passes) / line,
            reread_bytes=float((len(passes) - 1) * form.count * form.depth * size),
            block_reread_bytes=float(threads * form.depth * size),
            in_flight_bytes=float(size * flying),
            instructions=arch.costs.reduction_instructions + form.depth * each,
            load_rounds=len(passes) * form.depth / flying * 0.7,
        )
        config = ColumnWalkConfig(WALK_NAME, arch, threads, unroll)
        ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
