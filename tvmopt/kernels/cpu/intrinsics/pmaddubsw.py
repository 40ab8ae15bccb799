"""x86 dot product without VNNI: 4 int8 products per 32-bit lane by ``vpmaddubsw``.

``vpmaddubsw`` multiplies uint8 data by int8 weights and adds pairs of products in int16, with
saturation; ``vpmaddwd`` by ones then adds pairs of int16 in int32. The results are exact where no
pair of neighbouring weights can saturate: see :mod:`tvmopt.kernels.exact_pairs`.
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


def _products(pairs: str, sums: str, lanes: int) -> Emit:
    words = f"int16x{2 * lanes}"

    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        ones = T.broadcast(T.int16(1), 2 * lanes)
        products = llvm_call(pairs, words, data, weight)
        return accumulator + llvm_call(sums, f"int32x{lanes}", products, ones)

    return emit


def _pmaddubsw(name: str, pairs: str, sums: str, lanes: int, feature: str) -> DotIntrinsic:
    return x86_byte_dot(
        name,
        "vpmaddubsw",
        feature,
        lanes,
        _products(pairs, sums, lanes),
        multiplies=2,
        additions=1,
        preparation=Preparation(constants=1),
        exact_pairs_only=True,
    )


PMADDUBSW = (
    _pmaddubsw(
        "pmaddubsw_512",
        "llvm.x86.avx512.pmaddubs.w.512",
        "llvm.x86.avx512.pmaddw.d.512",
        16,
        "avx512bw",
    ),
    _pmaddubsw("pmaddubsw_256", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", 8, "avx2"),
)
