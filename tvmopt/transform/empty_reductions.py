"""Give reductions over no elements their initial value.

before -> after: one loop nest that stores the initial value in the first step of a reduction ->
a loop nest that stores the initial value, then one that reduces. TensorIR's reductions write
nothing where the reduced axis has no elements: a sum then is what memory held, and not 0.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx

from tvmopt.kernels.passes.each_function import change_each


@tvm.transform.module_pass(opt_level=0, name="InitialiseEmptyReductions")
class InitialiseEmptyReductions:
    """Store initial values apart where the number of reduced elements may be 0."""

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module with the reductions in question in two loop nests."""
        return change_each(mod, _apart)


def _apart(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with its possibly empty reductions in two loop nests."""
    names = _possibly_empty(func)
    if not names:
        return func
    schedule = s_tir.Schedule(func)
    for name in names:
        block = schedule.get_sblock(name)
        schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    return schedule.mod["main"].with_attrs(func.attrs)


def _possibly_empty(func: tirx.PrimFunc) -> list[str]:
    """Return the names of blocks that reduce over a number of elements that may be 0."""
    analyzer = sym.Analyzer()
    names: list[str] = []

    def visit(block: s_tir.SBlock) -> None:
        if block.init is None:
            return
        reduced = [v.dom.extent for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if not all(analyzer.can_prove(extent > 0) for extent in reduced):
            names.append(block.name_hint)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit))
    return names
