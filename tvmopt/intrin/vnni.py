"""x86 VNNI: four bytes times four bytes into each 32-bit lane, unsigned by signed.

``vpdpbusd`` of AVX512-VNNI (16 lanes) and of AVX-VNNI (8). Products and their sum are exact; sums
wrap around as in C.
"""

from __future__ import annotations

from tvm import ir

from .base import DotIntrinsic, Emit, llvm_call


def _vpdpbusd(bits: int) -> Emit:
    lanes = bits // 32

    def emit(sums: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return llvm_call(f"llvm.x86.avx512.vpdpbusd.{bits}", f"int32x{lanes}", sums, data, weight)

    return emit


def _vnni(name: str, bits: int, features: tuple[str, ...]) -> DotIntrinsic:
    return DotIntrinsic(
        name=name,
        isa="x86_64",
        instruction="vpdpbusd",
        features=features,
        data="uint8",
        weight="int8",
        sums="int32",
        lanes=bits // 32,
        depth=4,
        emit=_vpdpbusd(bits),
    )


VNNI = (
    _vnni("tvmopt.vnni_512", 512, ("avx512vnni",)),
    _vnni("tvmopt.vnni_256", 256, ("avxvnni",)),
)
