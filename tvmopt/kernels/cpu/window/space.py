"""Configuration space of the depthwise and pooling family, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cost import COPY
from tvmopt.kernels.cpu.common.tile_loops import TileLoops
from tvmopt.kernels.cpu.common.window_traffic import WindowTraffic
from tvmopt.kernels.cpu.window.config import INLINED, NAME, WindowConfig
from tvmopt.kernels.cpu.window.schedule import MOST_UNROLLED, WindowForm
from tvmopt.kernels.ranked import Ranked

_GOOD_USE = 0.7


def window_hints(form: WindowForm, arch: CpuArch) -> list[Ranked[WindowConfig]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    model = WindowModel(form, arch)
    return [model.rank(hint) for hint in _hints(form, arch)]


def _hints(form: WindowForm, arch: CpuArch) -> Iterator[WindowConfig]:
    last = len(form.extents) - 1
    for around in (False, True) if form.inlines else (False,):
        for tile in _register_tiles(form, arch, around):
            trips = [math.ceil(e / b) for e, b in zip(form.extents, tile, strict=True)]
            for order in _orders(last):
                for parallel in _parallel_depths([trips[p] for p in order], arch.cores):
                    depths = [INLINED] if around else _producer_depths(form, order, parallel)
                    for depth in depths:
                        yield WindowConfig(
                            NAME,
                            arch,
                            register_tile=tile,
                            loop_order=order,
                            parallel_loops=parallel,
                            producer_depth=depth,
                        )


def _register_tiles(form: WindowForm, arch: CpuArch, around: bool) -> Iterator[tuple[int, ...]]:
    """Yield register tiles: neighbouring outputs x channels; ``around``: padding is inlined."""
    for width in _widths(form, arch, around):
        vectors = math.ceil(width / form.vector(width, arch, around=around))
        for rows in _row_blocks(form.extents, vectors, form, arch):
            yield (*rows, width)


def _orders(last: int) -> list[tuple[int, ...]]:
    """Return loop orders: channels innermost, around the last row axis, or next to the batch."""
    plain = tuple(range(last + 1))
    if last == 0:
        return [plain]
    orders = [plain, (*plain[:-2], last, last - 1), (0, last, *plain[1:-1])]
    return list(dict.fromkeys(orders))


def _producer_depths(form: WindowForm, order: tuple[int, ...], parallel: int) -> list[int]:
    """Return compute_at depths of the padding: 0 for a separate pass, else inside tile loops."""
    last = len(order) - 1
    if not form.producers:
        return [0]
    depths = [0]
    if parallel and last >= 2:
        depths.append(max(parallel, last - 1))
        if order[-1] != last and parallel <= last:  # the padded input of one channel tile
            depths.append(last)
    return list(dict.fromkeys(depths))


def _widths(form: WindowForm, arch: CpuArch, around: bool) -> list[int]:
    """Return the tile's channel counts: whole vectors, or those with the best lane utilisation."""
    facts = form.facts
    extent = facts.axes[facts.spatial[-1]].extent
    lanes = arch.lanes(facts.dtype)
    most = (4 if form.unrolled_taps else 8) * lanes
    widths = [width for width in range(1, min(extent, most) + 1) if extent % width == 0]
    found = {width: form.vector(width, arch, around=around) for width in widths}
    whole = [width for width, vector in found.items() if width % vector == 0]
    if whole:
        longest = max(found[width] for width in whole)
        return [width for width in whole if found[width] == longest]
    used = {width: width / (math.ceil(width / lanes) * lanes) for width in found}
    if around or not form.unrolled_taps:  # LLVM scalarises longer loop-carried ones
        used = {width: use for width, use in used.items() if width < lanes}
    return [w for w, use in used.items() if use >= min(_GOOD_USE, max(used.values()))]


def _row_blocks(
    extents: list[int], vectors: int, form: WindowForm, arch: CpuArch
) -> Iterator[tuple[int, ...]]:
    rows = extents[:-1]
    most = max(1, (arch.vector_registers - 4) // vectors)
    if form.unrolled_taps:
        most = max(1, min(most, MOST_UNROLLED // (form.unrolled_taps * vectors)))
    wide = [p for p, e in enumerate(rows) if e > 1]
    if not wide:
        yield (1,) * len(rows)
        return
    inner = wide[-1]
    for count in [d for d in range(1, min(most, rows[inner]) + 1) if rows[inner] % d == 0]:
        yield tuple(count if p == inner else 1 for p in range(len(rows)))
        if len(wide) > 1:
            outer = wide[-2]
            for second in (2, 3, 4):
                if rows[outer] % second == 0 and second * count <= most:
                    yield tuple(
                        count if p == inner else second if p == outer else 1
                        for p in range(len(rows))
                    )


def _parallel_depths(trips: list[int], cores: int) -> list[int]:
    """Return numbers of parallel loops: 0, the fewest with 4 tasks per core, and balanced ones."""
    if cores == 1 or math.prod(trips) == 1:
        return [0]
    depths = [0]
    for depth in range(1, len(trips) + 1):
        tasks = math.prod(trips[:depth])
        if tasks >= 4 * cores:
            return [*depths, depth]
        if tasks > 1 and tasks % cores == 0:
            depths.append(depth)
    return list(dict.fromkeys([*depths, len(trips)]))


# Cycles per tap of each register spill.
_SPILL = 2.0
# Cycles to enter and leave a tile, and of the epilogue per accumulator.
_TILE, _FINISH = 16.0, 2.0
# Instructions per tap of 8-bit operands: ``vpmaddwd`` on extended operands, and an add.
_NARROW_UOPS = 2.0
# Slowdown of inlined padding: constant factor; increase per accumulator beyond _MOST_HELD, which
# LLVM keeps in registers across branches; factor if a tile has neighbours along two axes, and the
# same with 16 vector registers.
_AROUND, _CROWDED, _MOST_HELD, _TWO_WAYS, _TWO_WAYS_OF_16 = 1.05, 0.08, 8, 1.1, 1.25
# Instructions that widen a vector of bfloat16; channels of bfloat16 in a cache line; bytes of a
# padded copy per cycle, half of float32's, as the copy takes as many vectors. Fit to 34 depthwise
# convolutions of seven networks on an Emerald Rapids, see
# benchmarks/results/2026-11-28-amx-ranking.md.
_WIDEN_UOPS, _LINE, _COPY_BFLOAT16 = 2.0, 32, COPY / 2
# Channels of 8 bits in a cache line.
_BYTE_LINE = 64
# Input rows of a tile, about the window's height; one row at a time is in registers.
_ROWS_HELD = 3


class WindowModel:
    """Cost model for the configurations of one function.

    Args:
        form: The normalised function.
        arch: The CPU.
    """

    def __init__(self, form: WindowForm, arch: CpuArch) -> None:
        self._form, self._arch, self._taps = form, arch, form.facts.reduced
        self._extents = form.extents
        self._memory = _traffic(form, arch)

    def rank(self, hint: WindowConfig) -> Ranked[WindowConfig]:
        """Return ``hint`` with predicted cycles and the cost model's intermediate values."""
        arch, block = self._arch, hint.register_tile
        loops = TileLoops.of(hint, self._extents)
        lanes = self._form.vector(block[-1], arch, around=hint.inlined)
        vectors = math.ceil(block[-1] / lanes)
        accumulators = math.prod(block[:-1]) * vectors
        multiply = self._taps * accumulators / arch.fma_ports
        if self._form.multiplies_bytes:
            multiply *= _NARROW_UOPS
        loads, spilled = self._loads(hint, accumulators)
        if self._form.widens:
            multiply += loads * _WIDEN_UOPS / arch.fma_ports
        waits = accumulators < arch.fma_ports * arch.fma_latency
        latency = arch.fma_latency * self._taps if waits else 0.0
        compute = max(multiply, loads / arch.load_ports, latency) + self._taps * spilled * _SPILL
        one = self._memory.tile_cycles(compute, loops)
        one += accumulators * _FINISH + _TILE
        cycles = self._memory.all_tiles(one, loops)
        if hint.inlined:
            cycles *= _AROUND + _CROWDED * max(0, accumulators - _MOST_HELD)
            two_ways = _TWO_WAYS_OF_16 if arch.vector_registers <= 16 else _TWO_WAYS
            cycles *= two_ways if sum(size > 1 for size in block[:-1]) > 1 else 1.0
        else:
            cycles += self._memory.padding(loops, hint.producer_depth)
        copied, patch = self._memory.copied(loops, max(0, hint.producer_depth))
        facts = (
            multiply,
            loads,
            one,
            self._memory.misses(loops),
            self._memory.operand_bytes,
            loops.tasks / arch.cores,
            patch,
            copied,
        )
        return Ranked(hint, cycles, facts)

    def _loads(self, hint: WindowConfig, accumulators: int) -> tuple[float, float]:
        """Return a tile's vector loads (each input once), and its register spills."""
        operands = self._memory.operands(hint.register_tile)
        if not self._form.unrolled_taps:
            return self._taps * accumulators * len(operands), 0.0
        loaded = self._arch.simd_bytes / (2 if self._form.widens else 1)
        vectors = [size / loaded for size in operands]
        held = accumulators + max(vectors) / _ROWS_HELD
        return sum(vectors), max(0.0, held - self._arch.vector_registers + 4)


def _traffic(form: WindowForm, arch: CpuArch) -> WindowTraffic:
    """Return the cost of traffic: caches read lines, and a vector of a narrow dtype is a part."""
    if form.widens:
        return WindowTraffic(form, arch, least_channels=_LINE, copy_rate=_COPY_BFLOAT16)
    return WindowTraffic(form, arch, least_channels=_BYTE_LINE if form.multiplies_bytes else 1)
