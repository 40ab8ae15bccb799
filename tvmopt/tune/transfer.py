"""Schedule transfer: apply the schedule tuned for an anchor operator to fused functions.

A configuration of one of our templates is emitted again for the fused function; the template fuses
the epilogue at the anchor's tile. A MetaSchedule trace is replayed by block name, and the epilogue
is moved to the transferred tile before the trace's postprocessors run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.s_tir.schedule.instruction import Instruction, InstructionKind
from tvm.s_tir.schedule.trace import Trace
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width

from tvmopt.errors import TVM_ERRORS, last_line
from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.stage import inline_injective, split_vector
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.emit import NotApplicable, emit_kernel
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.rewrite import block_with
from tvmopt.tune.operator import anchor_block, operator_blocks, operator_function

_POSTPROC = "EnterPostproc"
# Bits per element that epilogues compute with.
_WORD = 32


def transfer_hints(func: tirx.PrimFunc, hints: Sequence[Hint]) -> tirx.PrimFunc:
    """Emit ``func`` with the first applicable hint; ``hints`` are ordered fastest first.

    Raises:
        NotApplicable: When no hint applies.
    """
    refused = ""
    for hint in hints:
        try:
            return emit_kernel(func, hint)
        except NotApplicable as error:
            refused = refused or str(error)
    raise NotApplicable(refused or "no schedule of its operator was measured")


def transfer_trace(
    func: tirx.PrimFunc, operator: tirx.PrimFunc, trace: Trace, target: Target
) -> tirx.PrimFunc:
    """Apply a trace, tuned for ``operator`` on ``target``, to ``func``.

    Before -> after, for a matmul with a 4 x 16 tile::

        for m, n: for k: C[m, n] += A[m, k] * B[k, n]         for m, n: D[m, n] = relu(C[m, n])
        for mo, no in T.parallel(...):
            for k, mi, ni: C[...] += ...
            for mi, ni: D[mo * 4 + mi, no * 16 + ni] = relu(C[...])

    Args:
        func: The fused function.
        operator: The tuned operator. It is structurally equal to the operator of ``func``, but its
            block names, which the trace uses, may differ.
        trace: A MetaSchedule trace.
        target: Target of the trace.

    Raises:
        NotApplicable: When the trace does not apply, or the epilogue does not fuse at its tile.
    """
    try:
        sch = _transferred(_named_like(func, operator), trace, target)
    except NotApplicable:
        raise
    except TVM_ERRORS as error:
        raise NotApplicable(f"the trace does not fit: {last_line(error, None)}") from error
    return finish(sch.mod["main"], func)


def _transferred(func: tirx.PrimFunc, trace: Trace, target: Target) -> s_tir.Schedule:
    """Apply the trace to ``func``, whose blocks have the names that the trace uses."""
    operator = operator_function(func)
    assert operator is not None, "a function with a trace has an operator"
    insts = _by_name(operator, trace)
    own = operator_blocks(func)
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_injective(sch, kept=own)
    stages = _epilogue(sch, own)
    before = len(leaf_blocks(sch)) - len(own) - len(stages)
    if before:
        raise NotApplicable(f"its epilogue reads {before} stages that no tile can hold")
    cut = next((i for i, inst in enumerate(insts) if inst.kind.name == _POSTPROC), len(insts))
    Trace(insts[:cut], trace.decisions).apply_to_schedule(sch, remove_postproc=False)
    if stages:
        _fuse_epilogue(sch, operator, stages, target)
    Trace(insts[cut:], trace.decisions).apply_to_schedule(sch, remove_postproc=False)
    return sch


def _epilogue(sch: s_tir.Schedule, own: list[str]) -> list[SBlockRV]:
    """Return the blocks that consume the result of the blocks ``own``, in program order."""
    needed, stages = {own[-1]}, []
    for block in leaf_blocks(sch):
        name = sch.get(block).name_hint
        read = {sch.get(producer).name_hint for producer in sch.get_producers(block)}
        if name not in own and read & needed:
            needed.add(name)
            stages.append(block)
    return stages


def _named_like(func: tirx.PrimFunc, operator: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rename the operator's blocks of ``func`` to the names in ``operator``, an equal operator."""
    names = dict(zip(operator_blocks(func), operator_blocks(operator), strict=True))

    def rename(block: s_tir.SBlock) -> s_tir.SBlock:
        if block.name_hint == "root":
            return block
        name = names.setdefault(block.name_hint, f"epilogue_{len(names)}")
        return block_with(block, name_hint=name)

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, rename), order="post")
    return func.with_body(body)


def _fuse_epilogue(
    sch: s_tir.Schedule, operator: tirx.PrimFunc, stages: Sequence[SBlockRV], target: Target
) -> None:
    """Fuse the epilogue ``stages`` into the loop where a tile of ``operator`` is complete."""
    anchor = sch.get_sblock(anchor_block(operator))
    [last] = [b for b in sch.get_producers(stages[0]) if _writes(sch, b, operator.params[-1])]
    if sch.get(last).same_as(sch.get(anchor)):
        tile = _finished_tile(sch, anchor)
    else:  # the trace copies the tile out of a cache buffer
        tile = _common_loops(sch, anchor, last)
        if _is_inlined(sch, stages[0]):
            stages = stages[1:]
    if stages and not tile:
        raise NotApplicable("the trace leaves no loop in which a tile is finished")
    for stage in stages:
        sch.reverse_compute_at(stage, tile[-1], preserve_unit_loops=True)
        inner = sch.get_loops(stage)[len(tile) :]
        facts = block_facts(sch, stage)
        if inner and not any(facts.conditional) and len(inner) == len(facts.axes):
            split_vector(sch, inner[-1], llvm_get_vector_width(target) // _WORD)


def _writes(sch: s_tir.Schedule, block: SBlockRV, buffer: tirx.Buffer) -> bool:
    return any(region.source.same_as(buffer) for region in sch.get(block).writes)


def _is_inlined(sch: s_tir.Schedule, stage: SBlockRV) -> bool:
    """Inline ``stage`` into its producer if TVM can; return whether it did."""
    try:
        sch.reverse_compute_inline(stage)
    except (ScheduleError, InternalError):  # InternalError: the stage reads one element twice
        return False
    return True


def _finished_tile(sch: s_tir.Schedule, anchor: SBlockRV) -> list[LoopRV]:
    """Return the loops outside all reduction loops."""
    loops = sch.get_loops(anchor)
    return list(itertools.takewhile(lambda loop: not _is_reduced(sch, anchor, loop), loops))


def _common_loops(sch: s_tir.Schedule, first: SBlockRV, second: SBlockRV) -> list[LoopRV]:
    others = [sch.get(loop) for loop in sch.get_loops(second)]
    return [
        loop
        for loop in sch.get_loops(first)
        if any(sch.get(loop).same_as(other) for other in others)
    ]


def _is_reduced(sch: s_tir.Schedule, anchor: SBlockRV, loop: Any) -> bool:
    """Return whether ``loop`` is a reduction loop of ``anchor``."""
    variable = sch.get(loop).loop_var
    realize = _realize_of(sch, anchor)
    values = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return any(
        iv.iter_type == tirx.IterVar.CommReduce and _uses(value, variable) for iv, value in values
    )


def _uses(expr: Any, variable: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expr, (tirx.Var, lambda var: found.append(var) if var.same_as(variable) else None)
    )
    return bool(found)


def _realize_of(sch: s_tir.Schedule, block: SBlockRV) -> Any:
    name = sch.get(block).name_hint
    found: list[Any] = []

    def visit(realize: s_tir.SBlockRealize) -> None:
        if realize.block.name_hint == name:
            found.append(realize)

    tvm_ffi.structural_walk(sch.mod["main"].body, (s_tir.SBlockRealize, visit))
    return found[0]


def _by_name(operator: tirx.PrimFunc, trace: Trace) -> list[Instruction]:
    """Replace ``GetChildBlocks`` instructions by one ``GetSBlock`` per block name.

    The fused function has more blocks than its operator, so a listing would have another length.
    """
    insts = list(trace.insts)
    written: list[Instruction] = []
    for at, inst in enumerate(insts):
        if inst.kind.name != "GetChildBlocks":
            written.append(inst)
            continue
        sch = s_tir.Schedule(IRModule({"main": operator}))
        listing = Trace(insts[: at + 1], trace.decisions)
        listing.apply_to_schedule(sch, remove_postproc=False)
        get = InstructionKind.get("GetSBlock")
        written += [
            Instruction(get, [], [sch.get(block).name_hint, "main"], [output])
            for block, output in zip(sch.trace.insts[-1].outputs, inst.outputs, strict=True)
        ]
    return written
