"""Enumerate configurations of row reductions, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.row_reduction.form import RowForm
from tvmopt.kernels.cuda.row_reduction.schedule import NAME
from tvmopt.kernels.ranked import Ranked

# Instructions of a thread besides its elements.
_PROLOGUE = 30.0
# Instructions of one shuffle step, and its cycles.
_SHUFFLE = 6.0
_SHUFFLE_WAIT = 45.0
# Cycles of a reduction over several warps: two barriers and shared memory.
_BARRIERS = 150.0
# Cycles until data that was read before arrives again.
_AGAIN = 120.0
# Fewest threads of a block of rows; some idle where the elements are fewer.
_FEWEST = 32
# Bytes of an L1 line; lines that a store of less than an L2 sector costs.
_LINE, _PARTIAL = 128, 3.0


def row_reduction_hints(form: RowForm, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return the ``gpu_row_reduction`` configurations for ``form``, fastest predicted first."""
    blocks = all_facts(form.sch)
    passes = [f for f in blocks if f.reduction or form.wide]
    work = sum(0.5 + float_work(form.sch, f.name) for f in passes)
    moved = max(traffic(f) for f in passes) + (0.0 if form.wide else form.rows * 2.0)
    alone = form.crosses and _alone(form)
    vectors = {form.vector, max(1, form.vector // 2), 1 if form.vector < 4 else form.vector}
    few = _most_threads(form, min(vectors)) < _FEWEST
    ranked = []
    for vector, share, place, unroll, stage in itertools.product(
        sorted(vectors),
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        (1, 2, 4, 8, 16, 32, 64),
        (1, 2, 4, 8),
        (0, 1, 2),
    ):
        threads = share * place
        pieces = form.columns // vector
        if not _FEWEST <= threads <= 512 and not (place == 1 and threads == 1024):
            continue
        if place > (1 if form.rows == 1 else _FEWEST if few else 2 * form.rows):
            continue
        if share > (_FEWEST if few and form.rows == 1 else 2 * pieces):
            continue
        if (share < 32 and pieces > 64 * share) or pieces == 1 < share:
            continue
        steps = math.ceil(pieces / share)
        if unroll >= 2 * steps or (steps > unroll and steps % unroll):
            continue
        if stage and not (form.wide and len(blocks) > 1):
            continue
        if stage == 2 and (
            form.crosses
            or (form.columns % (vector * share) and (vector > 1 or form.columns < 4 * share))
            or form.columns // share > 128
            or unroll > 1
            or share < 2
            or blocks[0].axes[-1].extent != form.columns
        ):
            continue
        if form.crosses and (form.parts % place or (alone and pieces % share)):
            continue
        hint = CudaHint(
            NAME, arch, thread=(place,), reduce_threads=share, vector=vector,
            options=(("stage", stage), ("unroll", unroll)),
        )  # fmt: skip
        stream = _rows(form, blocks, hint, work, moved)
        ranked.append(Ranked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _most_threads(form: RowForm, vector: int) -> int:
    """Return the most useful threads: up to twice the rows, times twice the vectors of a row."""
    share = 2 ** int(math.log2(2 * (form.columns // vector)))
    return share if form.rows == 1 else share * 2 ** int(math.log2(2 * form.rows))


def _rows(
    form: RowForm, blocks: list[BlockFacts], hint: CudaHint, work: float, moved: float
) -> StreamCost:
    """Return the cost model's view of the kernel."""
    (place,), share, vector = hint.thread, hint.reduce_threads, hint.vector
    stage, unroll = hint.option("stage"), hint.option("unroll", 1)
    passes = [f for f in blocks if f.reduction or form.wide]
    steps = math.ceil(form.columns / vector / share)
    size = max(int(r.buffer.dtype.itemsize) for f in passes for r in f.reads)
    row = form.columns * size
    exchanges = math.log2(share) * sum(f.stores for f in blocks if f.reduction)
    loads = sum(4.0 + 2.0 * len(f.reads) for f in passes)
    many = max(0, len(passes) - 1)
    most = math.ceil(form.columns / share)
    kept = min(most, 128) if stage == 2 else vector * min(unroll, steps)
    return StreamCost(
        blocks=math.ceil(form.rows / place),
        threads=share * place,
        moved=moved,
        again=float(many * form.rows * row) if stage != 2 else 0.0,
        kept=float(place * row) if not stage else 0.0,
        flight=float(size * kept),
        instructions=_PROLOGUE
        + steps * (vector * work + loads)
        + exchanges * _SHUFFLE
        + (steps * 8.0 if stage == 1 else 0.0),
        chain=exchanges * _SHUFFLE_WAIT
        + (_BARRIERS * len(form.reductions) if share > 32 else 0.0)
        + (many * _AGAIN if stage != 2 else 0.0)
        + (60.0 if stage == 1 else 0.0),
        rounds=1.0 if stage == 2 else math.ceil(steps / unroll) * (0.5 + 0.5 * len(passes)),
        lines=steps * _lines(form, blocks, hint),
        registers=32 + kept * size // 4,
        smem=place * row if stage == 1 else 0,
    )


def _lines(form: RowForm, blocks: list[BlockFacts], hint: CudaHint) -> float:
    """Return the lines that a warp touches for one vector of each thread.

    Threads of a warp in different rows touch different lines.
    """
    vector, stage = hint.vector, hint.option("stage")
    together = min(hint.reduce_threads, hint.arch.warp)
    rows = hint.arch.warp / together
    total = 0.0
    for number, facts in enumerate(f for f in blocks if f.reduction or form.wide):
        size = max((int(r.buffer.dtype.itemsize) for r in facts.reads), default=4)
        if stage == 0 or number == 0:
            total += rows * _touched(together * vector * size, form.columns * size, _LINE)
        elif stage == 1:
            total += hint.arch.warp * vector * size / _LINE
        if not facts.reduction:
            out = int(facts.write.buffer.dtype.itemsize)
            piece, row = together * vector * out, form.columns * out
            whole = piece >= (hint.arch.sector if row % hint.arch.sector == 0 else _LINE // 2)
            total += rows * _touched(piece, row, _LINE) * (1.0 if whole else _PARTIAL)
    return total


def _touched(piece: int, row: int, line: int) -> float:
    """Return the mean number of lines that a piece of a row touches, at any alignment of rows."""
    return math.ceil(piece / line) + (piece / line % 1.0 if row % line else 0.0)


def _alone(form: RowForm) -> bool:
    """Whether the row is only a part of the output's last axis."""
    last = next(f for f in all_facts(form.sch) if f.name == form.last)
    return last.axes[-1].extent > form.columns
