"""DotIntrinsic: a dot-product instruction as a TVM tensor intrinsic."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

#: (accumulators, data, weight) -> accumulators, as vectors; ``data`` is already broadcast.
Emit = Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr]


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Instructions that prepare the operands of a dot product that is no single instruction.

    Attributes:
        data: Instructions for each broadcast word of the data.
        weight: Instructions for each vector of the weight.
        registers: Vector registers that each prepared word or vector takes.
        constants: Vector registers of constants.
    """

    data: int = 0
    weight: int = 0
    registers: int = 1
    constants: int = 0


@dataclasses.dataclass(frozen=True)
class DotIntrinsic:
    """Dot product ``accumulator[i] += sum over k of data[k] * weight[i, k]``.

    Each lane accumulates ``depth`` products per instruction. ``data`` is loaded as one 32-bit word
    and broadcast to all lanes; ``weight`` is one contiguous vector of ``lanes`` x ``depth``
    elements.

    Attributes:
        name: Name in hints, logs and TVM's registry of tensor intrinsics.
        isa: Instruction-set architecture, ``"x86_64"``, ``"hexagon"``, ...
        instruction: Mnemonic in the disassembly.
        features: Required CPU features, in LLVM's names.
        data: Dtype of the broadcast operand.
        weight: Dtype of the vector operand.
        accumulator: Dtype of the accumulators.
        lanes: Accumulators per vector register.
        depth: K granularity: products per lane and instruction.
        emit: Builds the TensorIR expression of the instruction.
        function: LLVM IR of the function that ``emit`` calls; empty if it calls an LLVM intrinsic.
            :func:`~tvmopt.kernels.cpu.intrinsics.llvm_functions.with_llvm_functions` adds it to the
            scheduled function.
        llvm_name: The LLVM intrinsic that takes accumulators, data and weight as they are; empty if
            there is none.
        multiplies: Instructions that multiply in a dot product.
        additions: Instructions that add their results to the accumulator; 0 where the instruction
            that multiplies also adds.
        preparation: Instructions before them.
        exact_pairs_only: Whether pairs of products saturate, unless the weight's pairs are exact:
            see :mod:`tvmopt.kernels.exact_pairs`.
        slow_with: CPU features, in LLVM's names. A CPU with any of them multiplies faster without
            the instruction, so the instruction is not used there.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    data: str
    weight: str
    accumulator: str
    lanes: int
    depth: int
    emit: Emit = dataclasses.field(compare=False, repr=False)
    function: str = dataclasses.field(default="", repr=False)
    llvm_name: str = ""
    multiplies: int = 1
    additions: int = 0
    preparation: Preparation = Preparation()
    exact_pairs_only: bool = False
    slow_with: tuple[str, ...] = ()

    @property
    def defines(self) -> set[str]:
        """Names of the functions that ``function`` defines."""
        return set(re.findall(r"^define .*?@(\w+)\(", self.function, re.MULTILINE))

    def register(self) -> str:
        """Register the intrinsic with TVM once; return its name for ``Schedule.tensorize``."""
        if s_tir.TensorIntrin.get(self.name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(self.name, _definition(self), _implementation(self))
        return self.name


def _definition(dot: DotIntrinsic) -> tirx.PrimFunc:
    """Return the tensor intrinsic's description: scalar TensorIR for pattern matching."""
    data, weight, accumulator = dot.data, dot.weight, dot.accumulator
    lanes, depth = dot.lanes, dot.depth

    @T.prim_func(s_tir=True)
    def definition(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (depth,), data, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), accumulator, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            for i, k in T.grid(lanes, depth):
                with T.sblock("dot"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], accumulator) * T.cast(B[vi, vk], accumulator)

    return definition


def _implementation(dot: DotIntrinsic) -> tirx.PrimFunc:
    """Return the tensor intrinsic's implementation: one dot-product instruction."""
    data, weight, accumulator = dot.data, dot.weight, dot.accumulator
    lanes, depth = dot.lanes, dot.depth
    emit = dot.emit
    vector = f"{data}x{lanes * depth}"

    def broadcast(word: ir.Expr) -> ir.Expr:
        """Repeat the elements of one 32-bit word in all lanes."""
        return T.reinterpret(vector, T.broadcast(T.reinterpret("int32", word), lanes))

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (depth,), data, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), accumulator, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            C[T.ramp(0, 1, lanes)] = emit(
                C.vload([0], dtype=f"{accumulator}x{lanes}"),
                broadcast(A.vload([0], dtype=f"{data}x{depth}")),
                B.vload([0, 0], dtype=f"{weight}x{lanes * depth}"),
            )

    return implementation


def x86_byte_dot(
    name: str,
    instruction: str,
    feature: str,
    lanes: int,
    emit: Emit,
    *,
    data: str = "uint8",
    weight: str = "int8",
    **how: Any,
) -> DotIntrinsic:
    """Return a dot product of x86 that adds 4 products of bytes to each of ``lanes`` int32.

    Args:
        name: Name without the prefix ``tvmopt.``.
        instruction: Mnemonic.
        feature: Required CPU feature, in LLVM's name.
        lanes: Accumulators per vector register.
        emit: Builds the expression.
        data: Dtype of the broadcast operand.
        weight: Dtype of the vector operand.
        how: Further attributes of :class:`DotIntrinsic`.
    """
    return DotIntrinsic(
        f"tvmopt.{name}", "x86_64", instruction, (feature,), data, weight, "int32", lanes, 4, emit,
        **how,
    )  # fmt: skip


def llvm_call(name: str, dtype: str, *args: ir.Expr) -> Any:
    """Return a call of the pure LLVM intrinsic ``name``."""
    return T.call_llvm_pure_intrin(dtype, name, *args)
