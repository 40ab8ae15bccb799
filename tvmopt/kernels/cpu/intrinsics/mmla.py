"""AArch64 NEON: a 2 x 8 matrix of bytes times the transpose of another, into 2 x 2 words.

``smmla``, ``ummla`` and ``usmmla`` of the matrix extension: twice the products of a dot product,
for sums that lie two rows by two columns in a register.
"""

from __future__ import annotations

import dataclasses

from tvm import ir, s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cpu.intrinsics.base import llvm_call


@dataclasses.dataclass(frozen=True)
class MatrixIntrinsic:
    """``sums[i, j] += sum over k of data[i, k] * weight[j, k]``, exact in the type of the sums.

    ``data`` is ``rows`` x ``depth`` with any distance between rows; ``weight`` is one contiguous
    register of ``columns`` x ``depth`` elements, ``sums`` one of ``rows`` x ``columns``.

    Attributes:
        name: What hints, logs and TVM's registry call it.
        isa: Instruction-set family it belongs to.
        instruction: Mnemonic in the disassembly.
        features: LLVM's names of the CPU features that it needs, all of them.
        data: Type of the operand whose rows are the sums'.
        weight: Type of the operand whose rows are the sums' columns.
        sums: Type of the accumulators.
        rows: Rows of sums in a register.
        columns: Columns of sums in a register.
        depth: Products that one sum adds up.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    data: str
    weight: str
    sums: str = "int32"
    rows: int = 2
    columns: int = 2
    depth: int = 8

    def register(self) -> str:
        """Make the intrinsic known to TVM, once; its name, for ``Schedule.tensorize``."""
        if s_tir.TensorIntrin.get(self.name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(self.name, _definition(self), _implementation(self))
        return self.name


def _definition(mma: MatrixIntrinsic) -> tirx.PrimFunc:
    """What is computed, element by element."""
    rows, columns, depth = mma.rows, mma.columns, mma.depth
    data, weight, sums = mma.data, mma.weight, mma.sums

    @T.prim_func(s_tir=True)
    def definition(a: T.handle, b: T.handle, c: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (rows, depth), data, strides=[stride, 1], offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (columns, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (rows, columns), sums, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
            T.writes(C[0:rows, 0:columns])
            for i, j, k in T.grid(rows, columns, depth):
                with T.sblock("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], sums) * T.cast(B[vj, vk], sums)

    return definition


def _implementation(mma: MatrixIntrinsic) -> tirx.PrimFunc:
    """The same by one instruction."""
    rows, columns, depth = mma.rows, mma.columns, mma.depth
    data, weight, sums = mma.data, mma.weight, mma.sums
    llvm_name = f"llvm.aarch64.neon.{mma.instruction}.v4i32.v16i8"

    def both(upper: ir.Expr, lower: ir.Expr) -> ir.Expr:
        """Two rows as one register."""
        return tirx.Shuffle([upper, lower], list(range(rows * depth)))

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (rows, depth), data, strides=[stride, 1], offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (columns, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (rows, columns), sums, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns], A[0:rows, 0:depth], B[0:columns, 0:depth])
            T.writes(C[0:rows, 0:columns])
            C.vstore(
                [0, 0],
                llvm_call(
                    llvm_name,
                    f"{sums}x{rows * columns}",
                    C.vload([0, 0], dtype=f"{sums}x{rows * columns}"),
                    both(
                        A.vload([0, 0], dtype=f"{data}x{depth}"),
                        A.vload([1, 0], dtype=f"{data}x{depth}"),
                    ),
                    B.vload([0, 0], dtype=f"{weight}x{columns * depth}"),
                ),
            )

    return implementation


def _mmla(instruction: str, data: str, weight: str) -> MatrixIntrinsic:
    return MatrixIntrinsic(
        name=f"tvmopt.{instruction}",
        isa="aarch64",
        instruction=instruction,
        features=("i8mm",),
        data=data,
        weight=weight,
    )


MMLA = (
    _mmla("smmla", "int8", "int8"),
    _mmla("ummla", "uint8", "uint8"),
    _mmla("usmmla", "uint8", "int8"),
)
