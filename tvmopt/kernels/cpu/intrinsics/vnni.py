"""x86 VNNI dot product: 4 int8 products per 32-bit lane.

``vpdpbusd`` (u8 x s8) of AVX512-VNNI has 16 lanes, of AVX-VNNI 8 lanes. ``vpdpbssd`` (s8 x s8) and
``vpdpbuud`` (u8 x u8) of AVX-VNNI-INT8 have 8 lanes. The sum of 4 products is exact; accumulators
wrap around (no saturation).
"""

from __future__ import annotations

from tvm import ir

from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic, Emit, llvm_call, x86_byte_dot


def _call(name: str, lanes: int) -> Emit:
    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return llvm_call(name, f"int32x{lanes}", accumulator, data, weight)

    return emit


def _vnni(
    name: str, llvm_name: str, lanes: int, feature: str, data: str = "uint8", weight: str = "int8"
) -> DotIntrinsic:
    return x86_byte_dot(
        name,
        llvm_name.split(".")[-2],
        feature,
        lanes,
        _call(llvm_name, lanes),
        data=data,
        weight=weight,
        llvm_name=llvm_name,
    )


VNNI = (
    _vnni("vnni_512", "llvm.x86.avx512.vpdpbusd.512", 16, "avx512vnni"),
    _vnni("vnni_256", "llvm.x86.avx512.vpdpbusd.256", 8, "avxvnni"),
    _vnni("vnni_s8s8", "llvm.x86.avx2.vpdpbssd.256", 8, "avxvnniint8", "int8", "int8"),
    _vnni("vnni_u8u8", "llvm.x86.avx2.vpdpbuud.256", 8, "avxvnniint8", "uint8", "uint8"),
)
