"""Enumerate configurations of row reductions, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.row_reduction.config import CudaRowReductionConfig, RowCache
from tvmopt.kernels.cuda.row_reduction.cost import RowCost
from tvmopt.kernels.cuda.row_reduction.form import RowForm, reads_rows
from tvmopt.kernels.cuda.row_reduction.schedule import NAME
from tvmopt.kernels.ranked import Ranked

# Fewest and most threads of a block of several rows; some idle where the elements are fewer.
_FEWEST_THREADS, _MOST_THREADS = 32, 512
# Most elements of a row that a thread keeps in registers.
_MOST_CACHED = 128
# Most elements that a pass without a loop keeps too, as the compiler merges all passes' loads: 40
# were measured to be faster than a loop, 64 not.
_MOST_MERGED = 48


def row_reduction_hints(form: RowForm, arch: CudaArch) -> list[Ranked[CudaRowReductionConfig]]:
    """Return the ``gpu_row_reduction`` configurations for ``form``, fastest predicted first."""
    rows = _Rows.of(form)
    ranked = []
    for config in _configs(form, arch):
        if rows.takes(config):
            stream = rows.stream(config)
            ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _configs(form: RowForm, arch: CudaArch) -> Iterator[CudaRowReductionConfig]:
    """Yield the configurations whose threads have work, and whose unroll factor divides it."""
    vectors = {form.vector, max(1, form.vector // 2), 1 if form.vector < 4 else form.vector}
    few = _useful_threads(form, min(vectors)) < _FEWEST_THREADS
    most_rows = 1 if form.rows == 1 else _FEWEST_THREADS if few else 2 * form.rows
    for vector, share, rows, unroll, cache in itertools.product(
        sorted(vectors),
        (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        (1, 2, 4, 8, 16, 32, 64),
        (1, 2, 4, 8),
        RowCache,
    ):
        threads, pieces = share * rows, form.columns // vector
        whole_block = rows == 1 and threads == arch.threads_block
        if not (_FEWEST_THREADS <= threads <= _MOST_THREADS or whole_block) or rows > most_rows:
            continue
        if share > (_FEWEST_THREADS if few and form.rows == 1 else 2 * pieces):
            continue
        if (share < arch.warp and pieces > 64 * share) or pieces == 1 < share:
            continue
        steps = math.ceil(pieces / share)
        if unroll < 2 * steps and (steps <= unroll or steps % unroll == 0):
            yield CudaRowReductionConfig(NAME, arch, rows, share, vector, cache, unroll)


def _useful_threads(form: RowForm, vector: int) -> int:
    """Return the most useful threads: up to twice the rows, times twice the vectors of a row."""
    share = 2 ** int(math.log2(2 * (form.columns // vector)))
    return share if form.rows == 1 else share * 2 ** int(math.log2(2 * form.rows))


@dataclasses.dataclass(frozen=True)
class _Rows:
    """A row reduction as its cost model sees it, common to all configurations.

    Attributes:
        form: The row reduction.
        blocks: Its blocks.
        passes: The blocks that read whole rows.
        work: Instructions of an element, in all passes.
        moved: Compulsory memory traffic in bytes.
        within_axis: Whether the row is only a part of the output's last axis.
    """

    form: RowForm
    blocks: list[BlockFacts]
    passes: list[BlockFacts]
    work: float
    moved: float
    within_axis: bool

    @classmethod
    def of(cls, form: RowForm) -> _Rows:
        """Analyse ``form``."""
        blocks = all_facts(form.sch)
        passes = [f for f in blocks if f.reduction or form.wide]
        work = sum(0.5 + float_work(form.sch, f.name) for f in passes)
        moved = max(traffic(f) for f in passes) + (0.0 if form.wide else form.rows * 2.0)
        last = next(f for f in blocks if f.name == form.last)
        within_axis = form.crosses and last.axes[-1].extent > form.columns
        return cls(form, blocks, passes, work, moved, within_axis)

    def takes(self, config: CudaRowReductionConfig) -> bool:
        """Whether rows and the row cache of ``config`` fit."""
        form, share = self.form, config.reduce_threads
        if form.crosses and form.parts % config.threads:
            return False
        if self.within_axis and form.columns // config.vector_elements % share:
            return False
        if config.row_cache == RowCache.NONE:
            return True
        if not form.wide or len(self.blocks) == 1:
            return False  # nothing reads a row again
        return config.row_cache == RowCache.SHARED or self._fits_registers(config)

    def _fits_registers(self, config: CudaRowReductionConfig) -> bool:
        """Whether the threads' registers hold a row, each thread's part at constant places."""
        columns, share, vector = self.form.columns, config.reduce_threads, config.vector_elements
        divides = columns % (vector * share) == 0 or (vector == 1 and columns >= 4 * share)
        one_axis = self.blocks[0].axes[-1].extent == columns
        few = columns // share <= _MOST_CACHED and config.unroll == 1 < share
        return divides and one_axis and few and not self.form.crosses

    def stream(self, config: CudaRowReductionConfig) -> RowCost:
        """Return the cost model's view of the kernel."""
        form, passes, costs = self.form, self.passes, config.arch.costs
        share, vector, unroll = config.reduce_threads, config.vector_elements, config.unroll
        in_shared = config.row_cache == RowCache.SHARED
        kept = self._kept(config)
        steps = math.ceil(form.columns / vector / share)
        size = max(map(self._row_itemsize, passes))
        rows_bytes = config.threads * form.columns * size
        shuffles = math.log2(share) * sum(f.stores for f in self.blocks if f.reduction)
        loads = sum(4.0 + 2.0 * len(f.reads) for f in passes)
        guarded = vector > 1 and form.columns // vector % share != 0
        rereads = 0 if kept else max(0, len(passes) - 1)
        cached = vector * min(unroll, steps)
        rounds = math.ceil(steps / unroll) * (0.5 + 0.5 * len(passes))
        if kept:
            cached, rounds = min(math.ceil(form.columns / share), _MOST_CACHED), 1.0
        return RowCost(
            blocks=math.ceil(form.rows / config.threads),
            threads=share * config.threads,
            compulsory_bytes=self.moved,
            reread_bytes=float(rereads * form.rows * form.columns * size),
            block_reread_bytes=float(rows_bytes) if config.row_cache == RowCache.NONE else 0.0,
            instructions=steps * (vector * self.work + loads)
            + shuffles * costs.shuffle_instructions
            + (steps * 8.0 if in_shared else 0.0),
            shuffles=shuffles,
            cross_warps=len(form.reductions) if share > config.arch.warp else 0,
            rereads=rereads,
            in_shared=in_shared,
            guards=len(passes) - 1 if guarded else 0,
            load_rounds=rounds,
            warp_lines=steps * self._lines(config),
            registers=32 + cached * size // 4,
            smem_bytes=rows_bytes if in_shared else 0,
            exposed_lines=self._exposed_lines(config, rereads),
            phased=len(passes) > 1,
        )

    def _kept(self, config: CudaRowReductionConfig) -> bool:
        """Whether registers keep a row from pass to pass.

        In passes without loops, the compiler reads each element once, even across barriers.
        """
        if config.row_cache != RowCache.NONE:
            return config.row_cache == RowCache.REGISTERS
        pieces = math.ceil(self.form.columns / config.vector_elements)
        steps = math.ceil(pieces / config.reduce_threads)
        few = steps * config.vector_elements <= _MOST_MERGED
        return len(self.passes) > 1 and steps <= config.unroll and few

    def _exposed_lines(self, config: CudaRowReductionConfig, rereads: int) -> float:
        """Return the lines of an SM whose loads and stores wait exposed; 0 for a single pass."""
        form, arch = self.form, config.arch
        if len(self.passes) == 1:
            return 0.0
        size = max(map(self._row_itemsize, self.passes))
        lines = math.ceil(form.rows / arch.sms) * form.columns * size / arch.line
        piece = min(config.reduce_threads, arch.warp) * config.vector_elements * size
        split = max(1.0, min(arch.line, form.columns * size) / piece) - 1.0
        return lines * (rereads + (rereads + 1 + form.wide) * split * arch.costs.split_line_share)

    def _row_itemsize(self, facts: BlockFacts) -> int:
        """Return the bytes of the widest element of a row that the block reads."""
        elements = self.form.rows * self.form.columns
        reads = [r for r in facts.reads if reads_rows(r, elements)] or facts.reads
        return max((int(r.buffer.dtype.itemsize) for r in reads), default=4)

    def _lines(self, config: CudaRowReductionConfig) -> float:
        """Return the lines that a warp touches for one vector of each thread.

        Threads of a warp in different rows touch different lines, unless a line holds several rows.
        """
        form, arch, vector = self.form, config.arch, config.vector_elements
        together = min(config.reduce_threads, arch.warp)
        rows = arch.warp / together
        total = 0.0
        for number, facts in enumerate(self.passes):
            size = self._row_itemsize(facts)
            if config.row_cache == RowCache.NONE or number == 0:
                total += _lines_of(rows, together * vector * size, form.columns * size, arch.line)
            elif config.row_cache == RowCache.SHARED:
                total += arch.warp * vector * size / arch.line
            if not facts.reduction:
                out = int(facts.write.buffer.dtype.itemsize)
                piece, row = together * vector * out, form.columns * out
                whole = piece >= (arch.sector if row % arch.sector == 0 else arch.line // 2)
                weight = 1.0 if whole else arch.costs.partial_sector_lines
                total += _lines_of(rows, piece, row, arch.line) * weight
        return total


def _touched(piece: int, row: int, line: int) -> float:
    """Return the mean number of lines that a piece of a row touches, at any alignment of rows."""
    return math.ceil(piece / line) + (piece / line % 1.0 if row % line else 0.0)


def _lines_of(rows: float, piece: int, row: int, line: int) -> float:
    """Return the mean number of lines that a piece of each of ``rows`` adjacent rows touches."""
    return min(rows * _touched(piece, row, line), rows * row / line + 1.0)
