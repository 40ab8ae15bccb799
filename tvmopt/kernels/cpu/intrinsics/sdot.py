"""AArch64 NEON dot product: 4 int8 products per 32-bit lane, 4 lanes.

``sdot`` and ``udot`` need the feature ``dotprod``, ``usdot`` needs ``i8mm``.
"""

from __future__ import annotations

from tvm import ir

from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic, Emit, llvm_call


def _call(name: str) -> Emit:
    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return llvm_call(name, "int32x4", accumulator, data, weight)

    return emit


def _dot(instruction: str, feature: str, data: str, weight: str) -> DotIntrinsic:
    llvm_name = f"llvm.aarch64.neon.{instruction}.v4i32.v16i8"
    return DotIntrinsic(
        name=f"tvmopt.{instruction}",
        isa="aarch64",
        instruction=instruction,
        features=(feature,),
        data=data,
        weight=weight,
        accumulator="int32",
        lanes=4,
        depth=4,
        emit=_call(llvm_name),
        llvm_name=llvm_name,
    )


SDOT = (
    _dot("sdot", "dotprod", "int8", "int8"),
    _dot("udot", "dotprod", "uint8", "uint8"),
    _dot("usdot", "i8mm", "uint8", "int8"),
)
