"""Fallback on CPUs for any function of leaf blocks: each block has its own loop nest."""

from __future__ import annotations

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.fallback.schedule import emit


class Fallback(UnmodelledFamily):
    """Parallelises the outer loops and vectorises the inner loop of each block."""

    name = "fallback"
    schedule = staticmethod(emit)
    is_reference = True
    kind = "any"
