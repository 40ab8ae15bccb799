"""Which tensor instructions a scheduled function uses, read off its calls."""

from __future__ import annotations

import functools

from tvm import ir, tirx

from tvmopt.kernels.cpu.intrinsics.amx_configuration import tile_instruction
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.calls import callees
from tvmopt.kernels.cpu.intrinsics.choose import DOTS
from tvmopt.kernels.cuda.intrinsics.tensor_cores import tensor_core_instructions


def instructions_used(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Mnemonics of the tensor instructions in ``func``, sorted; empty when there are none.

    Args:
        func: A function after :func:`tvmopt.schedule.finish`, or a kernel for a GPU.
    """
    known = _instructions()
    found = tensor_core_instructions(func.body)
    for callee in callees(func.body):
        instruction = known.get(callee) or tile_instruction(callee)
        if instruction:
            found.add(instruction)
    return tuple(sorted(found))


@functools.cache
def _instructions() -> dict[str, str]:
    """Instruction by what is called: the name of a function, or the number of LLVM's intrinsic."""
    return {callee: dot.instruction for dot in DOTS for callee in callees(_call(dot))}


def _call(dot: DotIntrinsic) -> ir.Expr:
    count = dot.lanes * dot.depth
    return dot.emit(
        tirx.Var("sums", f"{dot.sums}x{dot.lanes}"),
        tirx.Var("data", f"{dot.data}x{count}"),
        tirx.Var("weight", f"{dot.weight}x{count}"),
    )
