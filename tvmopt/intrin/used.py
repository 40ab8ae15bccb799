"""Which tensor instructions a scheduled function uses, read off its calls."""

from __future__ import annotations

import functools

import tvm_ffi
from tvm import ir, tirx

from .amx_configuration import tile_instruction
from .base import DotIntrinsic
from .choose import DOTS

_EXTERN = "call_extern"
_LLVM = ("call_llvm_pure_intrin", "call_llvm_intrin")


def instructions_used(func: tirx.PrimFunc) -> tuple[str, ...]:
    """Mnemonics of the tensor instructions in ``func``, sorted; empty when there are none.

    Args:
        func: A function after :func:`tvmopt.schedule.finish`.
    """
    known = _instructions()
    found = set()
    for callee in _callees(func.body):
        instruction = known.get(callee) or tile_instruction(callee)
        if instruction:
            found.add(instruction)
    return tuple(sorted(found))


@functools.cache
def _instructions() -> dict[str, str]:
    """Instruction by what is called: the name of a function, or the number of LLVM's intrinsic."""
    return {callee: dot.instruction for dot in DOTS for callee in _callees(_call(dot))}


def _call(dot: DotIntrinsic) -> ir.Expr:
    count = dot.lanes * dot.depth
    return dot.emit(
        tirx.Var("sums", f"{dot.sums}x{dot.lanes}"),
        tirx.Var("data", f"{dot.data}x{count}"),
        tirx.Var("weight", f"{dot.weight}x{count}"),
    )


def _callees(node: tvm_ffi.Object) -> set[str]:
    found: set[str] = set()

    def on_call(call: ir.Call) -> None:
        name = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if name == _EXTERN:
            found.add(str(call.args[0].value))
        elif name in _LLVM:
            found.add(f"llvm:{int(call.args[0].value)}")

    tvm_ffi.structural_walk(node, (ir.Call, on_call), order="post")
    return found
