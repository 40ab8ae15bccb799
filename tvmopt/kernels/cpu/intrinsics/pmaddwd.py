"""x86 dot product without VNNI: 4 int8 products per 32-bit lane by two ``vpmaddwd``.

``vpmaddwd`` multiplies pairs of int16 and adds each pair to an int32. Its results are exact, unlike
``vpmaddubsw``'s, which saturate for some weights (:mod:`.pmaddubsw`). Operands of 8 bits are split
into their even and their odd bytes by shifts and masks: of the weight once for all rows of a
register tile, of the data once for all its columns, since LLVM computes equal expressions once.
"""

from __future__ import annotations

from tvm import ir
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cpu.intrinsics.base import (
    DotIntrinsic,
    Emit,
    Preparation,
    llvm_call,
    x86_byte_dot,
)

_BYTE = 8


def _products(llvm_name: str, lanes: int) -> Emit:
    words = f"int16x{2 * lanes}"

    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        shift = T.broadcast(T.int16(_BYTE), 2 * lanes)
        unsigned_shift = T.broadcast(T.uint16(_BYTE), 2 * lanes)
        mask = T.broadcast(T.uint16(0xFF), 2 * lanes)
        values = T.reinterpret(f"uint16x{2 * lanes}", data)
        factors = T.reinterpret(words, weight)
        even = T.bitwise_and(values, mask), T.shift_right(T.shift_left(factors, shift), shift)
        odd = T.shift_right(values, unsigned_shift), T.shift_right(factors, shift)
        for one, other in (even, odd):
            pairs = llvm_call(llvm_name, f"int32x{lanes}", T.reinterpret(words, one), other)
            accumulator = accumulator + pairs
        return accumulator

    return emit


def _pmaddwd(name: str, llvm_name: str, lanes: int, feature: str) -> DotIntrinsic:
    return x86_byte_dot(
        name,
        "vpmaddwd",
        feature,
        lanes,
        _products(llvm_name, lanes),
        multiplies=2,
        additions=2,
        preparation=Preparation(data=2, weight=3, registers=2),
    )


PMADDWD = (
    _pmaddwd("pmaddwd_512", "llvm.x86.avx512.pmaddw.d.512", 16, "avx512bw"),
    _pmaddwd("pmaddwd_256", "llvm.x86.avx2.pmadd.wd", 8, "avx2"),
)
