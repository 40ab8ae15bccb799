"""Read and build fused functions (``Primitive``), as they are between FuseOps and FuseTIR."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm
from tvm import relax

from tvmopt.kernels.call_tir import takes_tensors_only


@dataclasses.dataclass(frozen=True, eq=False)
class FusedKernel:
    """The calls of TensorIR functions that become one kernel.

    Attributes:
        params: The parameters.
        bindings: The calls; the last gives the result.
    """

    params: tuple[relax.Var, ...]
    bindings: tuple[relax.VarBinding, ...]


def fused_function(mod: tvm.IRModule, expr: relax.Expr) -> relax.Function | None:
    """Return the fused function that ``expr`` calls, if it only calls TensorIR functions."""
    if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.GlobalVar):
        return None
    function = mod[expr.op]
    fused = isinstance(function, relax.Function) and (function.attrs or {}).get("Primitive")
    if not fused or len(function.body.blocks) != 1:
        return None
    plain = all(takes_tensors_only(b.value) for b in function.body.blocks[0].bindings)
    return function if plain else None


def fused_kernel(mod: tvm.IRModule, call: relax.Call) -> FusedKernel:
    """Return the kernel of a call of a fused function, or of a single ``call_tir``."""
    function = fused_function(mod, call)
    if function is not None:
        return FusedKernel(tuple(function.params), tuple(function.body.blocks[0].bindings))
    params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(tensor_args(call))]
    inner = relax.Call(call.op, [call.args[0], relax.Tuple(params)], call.attrs, call.ty_args)
    return FusedKernel(tuple(params), (relax.VarBinding(relax.Var("gv", call.ty), inner),))


def tensor_args(expr: relax.Expr) -> list[relax.Expr]:
    """Return the arguments of a call without the TensorIR function; none of other expressions."""
    if takes_tensors_only(expr):
        return list(expr.args[1].fields)
    return list(expr.args) if isinstance(expr, relax.Call) else []


def with_operands(call: relax.Call, operands: Sequence[relax.Expr]) -> relax.Call:
    """Return a ``call_tir`` with other operands."""
    return relax.Call(
        call.op, [call.args[0], relax.Tuple(list(operands))], call.attrs, call.ty_args
    )


def named(bindings: Sequence[relax.VarBinding]) -> str:
    """Return the name of the fused function of ``bindings``."""
    return "_".join(["fused", *(b.value.args[0].name_hint for b in bindings)])
