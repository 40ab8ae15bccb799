"""What a dot-product instruction is to a schedule, and its two forms in TensorIR."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from tvm import ir, s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

#: (sums, data, weight) -> new sums: vectors of the instruction's types, ``data`` broadcast already.
Emit = Callable[[ir.Expr, ir.Expr, ir.Expr], ir.Expr]


@dataclasses.dataclass(frozen=True)
class DotIntrinsic:
    """``sums[i] += sum over k of data[k] * weight[i, k]``, exact in the type of the sums.

    Each lane adds up ``depth`` products at once. ``data`` is loaded as one word and broadcast to
    all lanes; ``weight`` is one contiguous register of ``lanes`` x ``depth`` elements.

    Attributes:
        name: What hints, logs and TVM's registry call it.
        isa: Instruction-set family it belongs to, ``"x86_64"``, ``"hexagon"``, ...
        instruction: Mnemonic in the disassembly.
        features: LLVM's names of the CPU features that it needs, all of them.
        data: Type of the broadcast operand.
        weight: Type of the vector operand.
        sums: Type of the accumulators.
        lanes: Accumulators in a register.
        depth: Products that a lane adds up.
        emit: Gives the instruction.
        function: LLVM source of the function that ``emit`` calls, where it calls one; to be put
            into the scheduled function by
            :func:`~tvmopt.kernels.cpu.intrinsics.llvm_functions.with_llvm_functions`.
    """

    name: str
    isa: str
    instruction: str
    features: tuple[str, ...]
    data: str
    weight: str
    sums: str
    lanes: int
    depth: int
    emit: Emit = dataclasses.field(compare=False, repr=False)
    function: str = dataclasses.field(default="", repr=False)

    @property
    def defines(self) -> set[str]:
        """Names of the functions that ``function`` defines."""
        return set(re.findall(r"^define .*?@(\w+)\(", self.function, re.MULTILINE))

    def register(self) -> str:
        """Make the intrinsic known to TVM, once; its name, for ``Schedule.tensorize``."""
        if s_tir.TensorIntrin.get(self.name, allow_missing=True) is None:
            s_tir.TensorIntrin.register(self.name, _definition(self), _implementation(self))
        return self.name


def _definition(dot: DotIntrinsic) -> tirx.PrimFunc:
    """What is computed, element by element."""
    data, weight, sums, lanes, depth = dot.data, dot.weight, dot.sums, dot.lanes, dot.depth

    @T.prim_func(s_tir=True)
    def definition(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (depth,), data, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), sums, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            for i, k in T.grid(lanes, depth):
                with T.sblock("dot"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], sums) * T.cast(B[vi, vk], sums)

    return definition


def _implementation(dot: DotIntrinsic) -> tirx.PrimFunc:
    """A function of data, weight and sums that computes a dot product by one instruction."""
    data, weight, sums, lanes, depth = dot.data, dot.weight, dot.sums, dot.lanes, dot.depth
    emit = dot.emit
    vector = f"{data}x{lanes * depth}"

    def broadcast(word: ir.Expr) -> ir.Expr:
        """The elements of one word, over and over."""
        return T.reinterpret(vector, T.broadcast(T.reinterpret("int32", word), lanes))

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (depth,), data, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, depth), weight, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), sums, offset_factor=1, scope="local")  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            C[T.ramp(0, 1, lanes)] = emit(
                C.vload([0], dtype=f"{sums}x{lanes}"),
                broadcast(A.vload([0], dtype=f"{data}x{depth}")),
                B.vload([0, 0], dtype=f"{weight}x{lanes * depth}"),
            )

    return implementation


def llvm_call(name: str, dtype: str, *args: ir.Expr) -> Any:
    """A call of LLVM's intrinsic ``name``, without side effects."""
    return T.call_llvm_pure_intrin(dtype, name, *args)
