"""Hexagon HVX dot product: 4 int8 products per 32-bit lane, 32 lanes of a 128-byte vector.

``vrmpy`` with two vector operands. LLVM's intrinsics take int32 vectors for all operand dtypes.
"""

from __future__ import annotations

from tvm import ir
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic, Emit, llvm_call

_LANES = 32


def _call(name: str) -> Emit:
    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        words = [T.reinterpret(f"int32x{_LANES}", operand) for operand in (data, weight)]
        return llvm_call(f"llvm.hexagon.V6.{name}.acc.128B", f"int32x{_LANES}", accumulator, *words)

    return emit


def _vrmpy(name: str, data: str, weight: str, llvm_name: str) -> DotIntrinsic:
    return DotIntrinsic(
        name=f"tvmopt.{name}",
        isa="hexagon",
        instruction="vrmpy",
        features=("hvxv60", "hvx-length128b"),
        data=data,
        weight=weight,
        accumulator="int32",
        lanes=_LANES,
        depth=4,
        emit=_call(llvm_name),
    )


VRMPY = (
    _vrmpy("vrmpy_u8s8", "uint8", "int8", "vrmpybusv"),
    _vrmpy("vrmpy_u8u8", "uint8", "uint8", "vrmpyubv"),
    _vrmpy("vrmpy_s8s8", "int8", "int8", "vrmpybv"),
)
