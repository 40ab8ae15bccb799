"""Round 16-bit floats through float32: TVM's ``nearbyint`` has no CUDA function for them.

Before -> after, for a scalar or a vector::

    nearbyint(x)     float16(nearbyint(float32(x)))
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.kernels.cpu.intrinsics.calls import called
from tvmopt.kernels.passes.each_function import change_each


def round_widely(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every PrimFunc of a module, before its intrinsics are lowered."""

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _wide), order="post"))

    return change_each(mod, change)


def _wide(call: ir.Call) -> ir.Expr:
    dtype, _, lanes = str(getattr(call.ty, "dtype", "")).partition("x")
    if called(call) != "nearbyint" or dtype not in HALF_FLOATS:
        return call
    wide = f"float32x{lanes}" if lanes else "float32"
    return tirx.Cast(str(call.ty.dtype), tirx.nearbyint(tirx.Cast(wide, call.args[0])))
