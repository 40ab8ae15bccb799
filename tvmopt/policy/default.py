"""DefaultPolicy: a function and a CPU -> configurations, the most promising first.

The idea is the fast tuner's: a good schedule uses the memory system well, so rank configurations
by modelled cycles from facts about the hardware, and measure only the best few.
"""

from __future__ import annotations

import dataclasses
import functools

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.arch.cpu import CpuArch
from tvmopt.policy.ranked import Ranked
from tvmopt.policy.register_tile import register_tile_hints
from tvmopt.policy.window import window_hints
from tvmopt.schedule.analysis import block_facts, leaf_blocks, why_not_schedulable
from tvmopt.schedule.apply import NotApplicable, apply_hint
from tvmopt.schedule.hint import Hint
from tvmopt.schedule.register_tile import Form, prepare
from tvmopt.schedule.window import WindowForm, prepare_window

# Variations of the templates without a tile: parallel tasks a core, registers a vector.
_VARIATIONS = ((8, 4), (1, 4), (8, 1), (2, 4), (0, 4), (0, 1), (4, 2), (1, 1))
# What the less specialised templates cost next to the best tile, until somebody measures.
_LESS_SPECIAL = 1.3


class DefaultPolicy:
    """Ranks the configurations of one function.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The CPU to schedule for.
    """

    def __init__(self, func: tirx.PrimFunc, arch: CpuArch) -> None:
        self.func = func
        self.arch = arch
        self.reason = why_not_schedulable(func)

    def emit_config(self, topk: int) -> list[Hint]:
        """The ``topk`` most promising configurations; none when no template takes the function.

        The first is what a build without measuring uses.
        """
        return [ranked.hint for ranked in self.ranked[:topk]]

    @functools.cached_property
    def ranked(self) -> list[Ranked]:
        """Every configuration with its modelled cycles, the cheapest first.

        Where configurations of several templates are at hand, each template's first stands near
        the top, so that a short list compares templates and not only tiles.
        """
        if self.reason is not None:
            return []
        if not _reductions(self.func):
            return _variations("elementwise", self.arch)
        form, window = _form(self.func), _window(self.func)
        tiles = sorted(
            [
                *(register_tile_hints(form, self.arch) if form else ()),
                *(window_hints(window, self.arch) if window else ()),
            ],
            key=lambda r: r.cycles,
        )
        if not tiles:
            names = ["contraction", "contraction_in_place", "fallback"]
            if _fits_rows(self.func, self.arch):
                return [*_variations("row_reduction", self.arch), *_variations(names[0], self.arch)[:2]]
            return [
                *_variations(names[0], self.arch)[:4],
                *_variations(names[1], self.arch)[:2],
                *_variations(names[2], self.arch)[:2],
            ]
        rows = _variations("row_reduction", self.arch)[:2] if _fits_rows(self.func, self.arch) else []
        others = [*rows, *_variations("contraction", self.arch)[:1]]
        if rows and form is not None and not form.constant:
            # A weight that changes with every call is not packed for a few rows.
            return [rows[0], *tiles[:8], *others[1:], *tiles[8:]]
        return [*tiles[:8], *others, *tiles[8:]]


def _fits_rows(func: tirx.PrimFunc, arch: CpuArch) -> bool:
    try:
        apply_hint(func, Hint("row_reduction", arch))
    except NotApplicable:
        return False
    return True


def _variations(template: str, arch: CpuArch) -> list[Ranked]:
    return [
        Ranked(Hint(template, arch, tasks=tasks, vectors=vectors), float(place + 1))
        for place, (tasks, vectors) in enumerate(_VARIATIONS)
    ]


def _reductions(func: tirx.PrimFunc) -> int:
    sch = s_tir.Schedule(IRModule({"main": func}))
    return sum(bool(block_facts(sch, block).reduction) for block in leaf_blocks(sch))


def _form(func: tirx.PrimFunc) -> Form | None:
    try:
        return prepare(func)
    except (ScheduleError, InternalError):
        return None  # TVM cannot make it ready; another template may not need to


def _window(func: tirx.PrimFunc) -> WindowForm | None:
    try:
        return prepare_window(func)
    except (ScheduleError, InternalError):
        return None


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
    hint: Hint | None = None
