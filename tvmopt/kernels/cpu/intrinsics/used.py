"""Find the tensor instructions that a scheduled function uses, from its calls."""

from __future__ import annotations

import functools

from tvm import ir, tirx

from tvmopt.kernels.cpu.intrinsics.amx_configuration import tile_instruction
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.calls import callees
from tvmopt.kernels.cpu.intrinsics.choose import DOTS
from tvmopt.kernels.cpu.intrinsics.depthwise import depthwise_instruction
from tvmopt.kernels.cuda.intrinsics.tensor_cores import tensor_core_instructions


def instructions_used(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Return the mnemonics of the tensor instructions in ``func``, sorted.

    Args:
        func: A function after :func:`tvmopt.kernels.cpu.finish.finish`, or a GPU kernel.
    """
    known = _instructions()
    found = tensor_core_instructions(func.body)
    for callee in callees(func.body):
        instruction = known.get(callee) or tile_instruction(callee) or depthwise_instruction(callee)
        if instruction:
            found.add(instruction)
    return tuple(sorted(found))


@functools.cache
def _instructions() -> dict[str, str]:
    """Map callees (function name or ``llvm:<id>``) to instruction mnemonics."""
    return {callee: dot.instruction for dot in DOTS for callee in callees(_call(dot))}


def _call(dot: DotIntrinsic) -> ir.Expr:
    count = dot.lanes * dot.depth
    return dot.emit(
        tirx.Var("accumulator", f"{dot.accumulator}x{dot.lanes}"),
        tirx.Var("data", f"{dot.data}x{count}"),
        tirx.Var("weight", f"{dot.weight}x{count}"),
    )
