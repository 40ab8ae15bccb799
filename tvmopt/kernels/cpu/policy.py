"""CpuPolicy: a function and a CPU -> configurations, the most promising first.

The idea is the fast tuner's: a good schedule uses the memory system well, so rank configurations
by modelled cycles from facts about the hardware, and measure only the best few.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TypeVar

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import block_facts, leaf_blocks, why_not_schedulable
from tvmopt.kernels.cpu.apply import NotApplicable, apply_hint
from tvmopt.kernels.cpu.common.cost import LAUNCH, bandwidth
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.matrix_tile.configs import matrix_tile_hints
from tvmopt.kernels.cpu.matrix_tile.schedule import prepare_matrix
from tvmopt.kernels.cpu.register_tile.configs import register_tile_hints
from tvmopt.kernels.cpu.register_tile.form import Form, prepare
from tvmopt.kernels.cpu.window.configs import window_hints
from tvmopt.kernels.cpu.window.schedule import WindowForm, prepare_window
from tvmopt.kernels.cpu.winograd.configs import winograd_hints
from tvmopt.kernels.cpu.winograd.schedule import WinogradForm, prepare_winograd
from tvmopt.kernels.ranked import Ranked, spread

_F = TypeVar("_F")

# Variations of the templates without a tile: parallel tasks a core, registers a vector.
_VARIATIONS = ((8, 4), (1, 4), (8, 1), (2, 4), (0, 4), (0, 1), (4, 2), (1, 1))


class CpuPolicy:
    """Ranks the configurations of one function.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The CPU to schedule for.
    """

    def __init__(self, func: tirx.PrimFunc, arch: CpuArch) -> None:
        self.func = func
        self.arch = arch
        self.reason = why_not_schedulable(func)

    def emit_config(self, topk: int) -> list[CpuHint]:
        """``topk`` configurations to measure; none when no template takes the function.

        The first is the most promising, which a build without measuring uses. Then come the best of
        families near it, and then its likes; see :func:`tvmopt.kernels.ranked.spread`.
        """
        return [ranked.hint for ranked in spread(self.ranked, topk)]

    @property
    def cycles(self) -> float:
        """Modelled cycles of the first choice."""
        return self.ranked[0].cycles if self.ranked else self._stream_cycles

    @functools.cached_property
    def signature(self) -> str:
        """Equal for functions whose tiles differ in the epilogue alone; empty without tiles.

        A convolution with a residual and one without want nearly the same configuration.
        """
        form = self._winograd or self._form or self._window
        if self.reason is not None or form is None:
            return ""
        axes = [(axis.extent, axis.reduce) for axis in form.facts.axes]
        reads = [
            ([int(e) for e in read.buffer.shape], str(read.buffer.dtype), read.strides)
            for read in form.facts.reads
        ]
        return repr((type(form).__name__, axes, reads, len(form.producers)))

    @functools.cached_property
    def _winograd(self) -> WinogradForm | None:
        return _prepared(prepare_winograd, self.func)

    @functools.cached_property
    def _form(self) -> Form | None:
        return _prepared(prepare, self.func) if self._winograd is None else None

    @functools.cached_property
    def _matrix(self) -> Form | None:
        if self._form is None or self._form.tile(self.arch) is None:
            return None
        return _prepared(prepare_matrix, self.func)

    @functools.cached_property
    def _window(self) -> WindowForm | None:
        return _prepared(prepare_window, self.func) if self._winograd is None else None

    @functools.cached_property
    def _stream_cycles(self) -> float:
        """Cycles to read and write every argument once, for templates without a tile."""
        size = sum(
            math.prod(int(e) for e in p.shape) * p.dtype.itemsize
            for p in self.func.params
            if all(isinstance(e, tirx.IntImm) for e in p.shape)
        )
        cores = self.arch.cores if size > 64 * 1024 else 1
        return size / bandwidth(size / cores, self.arch) / cores + (LAUNCH if cores > 1 else 0.0)

    def _variations(self, template: str) -> list[Ranked]:
        """The configurations of a template without a tile, the usual one first."""
        return [
            Ranked(
                CpuHint(template, self.arch, tasks=tasks, vectors=vectors),
                self._stream_cycles * (1.0 + 0.01 * place) + 1.0,
            )
            for place, (tasks, vectors) in enumerate(_VARIATIONS)
        ]

    @functools.cached_property
    def ranked(self) -> list[Ranked]:
        """Every configuration with its modelled cycles, the cheapest first.

        Where configurations of several templates are at hand, each template's first stands near
        the top, so that a short list compares templates and not only tiles.
        """
        if self.reason is not None:
            return []
        if not _reductions(self.func):
            return self._variations("elementwise")
        if self._winograd is not None:
            tasks = sorted(winograd_hints(self._winograd, self.arch), key=lambda r: r.cycles)
            return [*tasks, *self._variations("fallback")[:1]]
        form, window = self._form, self._window
        matrix = self._matrix
        tiles = sorted(
            [
                *(matrix_tile_hints(matrix, self.arch) if matrix else ()),
                *(register_tile_hints(form, self.arch) if form else ()),
                *(window_hints(window, self.arch) if window else ()),
            ],
            key=lambda r: r.cycles,
        )
        if not tiles:
            names = (
                "row_reduction",
                "column_reduction",
                "strided_window",
                "contraction",
                "contraction_in_place",
                "fallback",
            )
            found = [self._variations(name) for name in names if _fits(name, self.func, self.arch)]
            if not found:  # whoever asks gets each refusal's reason
                return [self._variations(name)[0] for name in names]
            return found[0] + [r for others in found[1:] for r in others[:2]]
        rows: list[Ranked] = []
        if _fits("row_reduction", self.func, self.arch):
            rows = self._variations("row_reduction")[:2]
        others = [*rows, *self._variations("contraction")[:1]]
        if rows and form is not None and not form.constant:
            # A weight that changes with every call is not packed for a few rows.
            return [rows[0], *tiles[:8], *others[1:], *tiles[8:]]
        return [*tiles[:8], *others, *tiles[8:]]


def _fits(template: str, func: tirx.PrimFunc, arch: CpuArch) -> bool:
    try:
        apply_hint(func, CpuHint(template, arch))
    except NotApplicable:
        return False
    return True


def _reductions(func: tirx.PrimFunc) -> int:
    sch = s_tir.Schedule(IRModule({"main": func}))
    return sum(bool(block_facts(sch, block).reduction) for block in leaf_blocks(sch))


def _prepared(how: Callable[[tirx.PrimFunc], _F | None], func: tirx.PrimFunc) -> _F | None:
    try:
        return how(func)
    except (ScheduleError, InternalError):
        return None  # TVM cannot make it ready; another template may not need to


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A function after scheduling.

    Attributes:
        func: The function, scheduled or as it was; its attributes are kept.
        rule: Name of the template that served, or ``"unscheduled: <reason>"``.
        schedule: The schedule, with its trace; None when no template served.
        hint: The configuration; None when no template served.
    """

    func: tirx.PrimFunc
    rule: str
    schedule: s_tir.Schedule | None = None
    hint: CpuHint | None = None
