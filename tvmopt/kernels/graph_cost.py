"""Cost model of a whole network: top-1 predicted cycles, summed over all kernel calls."""

from __future__ import annotations

import collections

import tvm
from tvm import relax, tirx

from tvmopt.device.arch import Arch
from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.kernels.kept_results import KeptResults
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.structure import Structure


def modelled_cycles(lowered: tvm.IRModule, arch: Arch) -> float:
    """Return the predicted cycles of one inference.

    Args:
        lowered: A Relax module with ``call_tir`` of fused PrimFuncs, as ``lower`` returns it.
        arch: The device.
    """
    calls: collections.Counter[str] = collections.Counter()

    def count(expr: relax.Expr) -> None:
        if is_call_tir(expr):
            calls[expr.args[0].name_hint] += 1

    for _, func in lowered.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, count)
    total = 0.0
    known = KeptResults("cycles", arch, arch.cost_parameters)
    for var, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc) and calls[var.name_hint]:
            structure = Structure(func, None)
            cycles = known.find(structure)
            if cycles is None:
                cycles = policy_of(func, arch).cycles
                known.keep(structure, cycles)
            total += calls[var.name_hint] * cycles
    return total
