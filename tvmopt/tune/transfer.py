"""Schedule transfer: what was measured of an operator, applied to a function that it anchors.

A configuration of one of our templates is applied anew; the template fuses whatever follows the
anchor at the tile. A trace of MetaSchedule's is replayed by the names of its blocks, and the
function's epilogue is put at the transferred tile before the trace's postprocessing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.s_tir.schedule.instruction import Instruction, InstructionKind
from tvm.s_tir.schedule.trace import Trace
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width

from tvmopt.schedule import Hint, NotApplicable, apply_hint, finish
from tvmopt.schedule.analysis import block_facts, leaf_blocks
from tvmopt.schedule.stage import inline_injective, split_vector
from tvmopt.tune.operator import anchor_block

_POSTPROC = "EnterPostproc"
# Bits of the numbers that epilogues compute with.
_WORD = 32


def transfer_hints(func: tirx.PrimFunc, hints: Sequence[Hint]) -> tirx.PrimFunc:
    """``func`` under the first of ``hints``, the fastest of its operator first, that it takes.

    Raises:
        NotApplicable: When it takes none.
    """
    refused = ""
    for hint in hints:
        try:
            return finish(apply_hint(func, hint).mod["main"], func)
        except NotApplicable as error:
            refused = refused or str(error)
    raise NotApplicable(refused or "no schedule of its operator was measured")


def transfer_trace(
    func: tirx.PrimFunc, operator: tirx.PrimFunc, trace: Trace, target: Target
) -> tirx.PrimFunc:
    """``func`` under a trace that was found for its ``operator`` on ``target``.

    Before -> after, for a product whose tile is 4 x 16::

        for m, n: for k: C[m, n] += A[m, k] * B[k, n]         for m, n: D[m, n] = relu(C[m, n])
        for mo, no in T.parallel(...):
            for k, mi, ni: C[...] += ...
            for mi, ni: D[mo * 4 + mi, no * 16 + ni] = relu(C[...])

    Raises:
        NotApplicable: When the trace does not fit, or the epilogue cannot be put at its tile.
    """
    if func.same_as(operator):
        sch = s_tir.Schedule(IRModule({"main": func}))
        trace.apply_to_schedule(sch, remove_postproc=False)
        return finish(sch.mod["main"], func)
    try:
        insts = _by_name(operator, list(trace.insts))
        sch = s_tir.Schedule(IRModule({"main": func}))
        own = {block.name_hint for block in _leaves(operator)}
        inline_injective(sch, kept=own)
        rest = [b for b in leaf_blocks(sch) if sch.get(b).name_hint not in own]
        if len(rest) > 1:
            raise NotApplicable(f"its epilogue is {len(rest)} stages, which no tile can hold")
        cut = next((i for i, inst in enumerate(insts) if inst.kind.name == _POSTPROC), len(insts))
        Trace(insts[:cut], trace.decisions).apply_to_schedule(sch, remove_postproc=False)
        for block in rest:
            anchor = anchor_block(operator)
            assert anchor is not None, "an operator has an anchor"
            _fuse_epilogue(sch, sch.get_sblock(anchor), block, target)
        Trace(insts[cut:], {}).apply_to_schedule(sch, remove_postproc=False)
    except (ScheduleError, InternalError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise NotApplicable(f"the trace does not fit: {lines[-1] if lines else error}") from error
    return finish(sch.mod["main"], func)


def _fuse_epilogue(
    sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV, target: Target
) -> None:
    """Compute ``epilogue`` where a tile of ``anchor`` is finished."""
    [written] = sch.get_producers(epilogue)
    if sch.get(written).name_hint != sch.get(anchor).name_hint:
        sch.reverse_compute_inline(epilogue)  # the trace writes the tile from a cache
        return
    loops = sch.get_loops(anchor)
    tile = []
    for loop in loops:
        if _is_reduced(sch, anchor, loop):
            break
        tile.append(loop)
    if len(tile) == len(loops):
        raise NotApplicable("the trace leaves no loop that finishes a tile")
    if tile:
        sch.reverse_compute_at(epilogue, tile[-1], preserve_unit_loops=True)
    inner = sch.get_loops(epilogue)[len(tile) :]
    facts = block_facts(sch, epilogue)
    if inner and not any(facts.conditional) and len(inner) == len(facts.axes):
        split_vector(sch, inner[-1], llvm_get_vector_width(target) // _WORD)


def _is_reduced(sch: s_tir.Schedule, anchor: SBlockRV, loop: Any) -> bool:
    """Whether ``loop`` goes over something that ``anchor`` sums up."""
    variable = sch.get(loop).loop_var
    realize = _realize_of(sch, anchor)
    values = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return any(
        iv.iter_type == tirx.IterVar.CommReduce and _uses(value, variable) for iv, value in values
    )


def _uses(expr: Any, variable: Any) -> bool:
    import tvm_ffi

    found: list[Any] = []
    tvm_ffi.structural_walk(
        expr, (tirx.Var, lambda var: found.append(var) if var.same_as(variable) else None)
    )
    return bool(found)


def _realize_of(sch: s_tir.Schedule, block: SBlockRV) -> Any:
    import tvm_ffi

    name = sch.get(block).name_hint
    found: list[Any] = []

    def visit(realize: s_tir.SBlockRealize) -> None:
        if realize.block.name_hint == name:
            found.append(realize)

    tvm_ffi.structural_walk(sch.mod["main"].body, (s_tir.SBlockRealize, visit))
    return found[0]


def _by_name(operator: tirx.PrimFunc, insts: list[Instruction]) -> list[Instruction]:
    """The instructions with every listing of blocks written out, name by name.

    The function has a block more than its operator; a listing would have a different length.
    """
    written: list[Instruction] = []
    for at, inst in enumerate(insts):
        if inst.kind.name != "GetChildBlocks":
            written.append(inst)
            continue
        sch = s_tir.Schedule(IRModule({"main": operator}))
        Trace(insts[:at], {}).apply_to_schedule(sch, remove_postproc=False)
        names = [sch.get(b).name_hint for b in leaf_blocks(sch)]
        if len(names) != len(inst.outputs):
            raise NotApplicable("the trace lists blocks inside of others")
        get = InstructionKind.get("GetSBlock")
        written += [
            Instruction(get, [], [name, "main"], [output])
            for name, output in zip(names, inst.outputs, strict=True)
        ]
    return written


def _leaves(func: tirx.PrimFunc) -> list[Any]:
    sch = s_tir.Schedule(IRModule({"main": func}))
    return [sch.get(block) for block in leaf_blocks(sch)]
