"""PTX and TIRx building blocks of the Hopper kernels: mbarrier, setmaxnreg, vector stores.

Every function emits into the innermost frame of the active ``IRBuilder``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes

#: An index: an expression, a number, or an array of numbers.
Number: TypeAlias = Expr | int | np.ndarray
_KNOWN = (int, np.ndarray)
_PAIR = "__forceinline__ __device__ void {}(void* p, {} a, {} b) {{ {} }}\n"
_FOUR = "__forceinline__ __device__ void {0}(void* p, {1} a, {1} b, {1} c, {1} d) {{ {2} }}\n"
# Registers of one asm statement.
_MOST_PINNED = 16
_PIN = """
__forceinline__ __device__ void pin_{0}({1}) {{
  asm volatile("" : {2} : : "memory");
}}
"""
_COPY = """
__forceinline__ __device__ void copy_{1}(void* to, const void* from) {{
  {0} value = *(const {0}*)from;
  __builtin_memcpy(to, &value, {1});
}}
"""
_VECTOR = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_SYNC = """
__forceinline__ __device__ void sync_threads_of(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
"""

_ARRIVE = """
__forceinline__ __device__ void arrive_at(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
"""

_SYNC_CLUSTER = """
__forceinline__ __device__ void sync_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
"""
_ELECT = """
__forceinline__ __device__ bool elect_one() {
  unsigned one;
  asm volatile("{\\n"
               ".reg .pred p;\\n"
               "elect.sync _|p, 0xffffffff;\\n"
               "selp.b32 %0, 1, 0, p;\\n"
               "}" : "=r"(one));
  return one != 0;
}
"""


def const(value: int, dtype: str = "int32") -> Expr:
    """Return a constant of dtype ``dtype``."""
    return tirx.const(value, dtype)


def quotient(a: Number, b: Number) -> Any:
    """Return ``a / b`` of non-negative numbers; TVM's floor division also handles signs."""
    if isinstance(a, _KNOWN) and isinstance(b, _KNOWN):
        return a // b
    return tirx.truncdiv(a, b)


def remainder(a: Number, b: Number) -> Any:
    """Return ``a % b`` of non-negative numbers."""
    if isinstance(a, _KNOWN) and isinstance(b, _KNOWN):
        return a % b
    return tirx.truncmod(a, b)


@dataclasses.dataclass(frozen=True)
class Threads:
    """Indices of a thread.

    Attributes:
        warpgroup: Warpgroup in the thread block.
        warp: Warp in the warpgroup.
        lane: Lane in the warp.
        thread: Thread in the warpgroup.
        rank: Rank of the thread block in its cluster, M fastest.
    """

    warpgroup: Expr
    warp: Expr
    lane: Expr
    thread: Expr
    rank: Expr


class Scalar:
    """A mutable per-thread variable in a register."""

    def __init__(self, dtype: str, value: Expr | int) -> None:
        self._dtype = dtype
        self._buffer = build.alloc_local([1], dtype)
        self.value = self._buffer[0]
        self.set(value)

    def set(self, value: Expr | int) -> None:
        """Assign ``value``."""
        if isinstance(value, int):
            value = const(value, self._dtype)
        build.buffer_store(self._buffer, value, [0])


def held(value: Expr | int) -> Expr:
    """Materialise ``value`` in a register.

    TVM's code generator repeats a bound expression at every use, even reads of special registers
    and divisions in the innermost loop.
    """
    if isinstance(value, (int, tirx.IntImm)):
        return value
    return Scalar(str(value.ty.dtype), value).value


@contextmanager
def device_entry() -> Iterator[None]:
    """Emit the body as a device function of which an SM runs one thread block at least."""
    with (
        build.attr({"tirx.device_entry": True}),
        build.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}),
    ):
        yield


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Emit the body under ``if (condition)``."""
    with build.If(condition), build.Then():
        yield


@contextmanager
def one_thread_of(warp: Expr) -> Iterator[None]:
    """Emit the body for one elected thread (``elect.sync`` in warp 0 of a warpgroup).

    ptxas knows that ``elect.sync`` leaves a single active thread. With any other predicate it
    emits a loop over the active threads around every TMA instruction.

    Args:
        warp: Warp index in the warpgroup, warp-uniform.
    """
    elected = T.cuda.func_call("elect_one", source_code=_ELECT, return_type="bool")
    with when(warp < 1), when(elected):
        yield


class Barriers:
    """Array of mbarriers in shared memory, one for each pipeline stage."""

    def __init__(self, pool: SMEMPool, count: int) -> None:
        self._count = count
        self._buffer = pool.alloc((count,), "uint64", align=8)

    def init(self, arrivals: int) -> None:
        """Initialise every mbarrier with its arrival count; for one thread."""
        for slot in range(self._count):
            build.evaluate(
                T.ptx.mbarrier.init.shared.b64(self._buffer.ptr_to([slot]), T.uint32(arrivals))
            )

    def pointer(self, slot: Expr) -> Expr:
        """Return the address of one mbarrier."""
        return self._buffer.ptr_to([slot])

    def wait(self, slot: Expr, phase: Expr) -> None:
        """Wait until the phase with parity ``phase`` completes."""
        build.evaluate(T.cuda.mbarrier_wait(self.pointer(slot), phase))

    def expect(self, slot: Expr, count: Expr | int) -> None:
        """Arrive and expect ``count`` transaction bytes (``arrive.expect_tx``)."""
        count = T.uint32(count) if isinstance(count, int) else T.cast(count, "uint32")
        build.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(self.pointer(slot), count))

    def arrive(self, slot: Expr, where: Expr) -> None:
        """Arrive, in the threads for which ``where`` holds."""
        build.evaluate(
            T.ptx.mbarrier.arrive.shared.b64(self.pointer(slot), T.uint32(1), pred=where)
        )

    def arrive_remote(self, slot: Expr, rank: Expr, where: Expr) -> None:
        """Arrive at the mbarrier of thread block ``rank`` of the cluster."""
        mapped = build.alloc_local([1], "uint32")
        build.evaluate(
            T.ptx.mapa.shared__cluster.u32(
                mapped[0], T.cuda.cvta_generic_to_shared(self.pointer(slot)), T.cast(rank, "uint32")
            )
        )
        build.evaluate(T.ptx.mbarrier.arrive.shared__cluster.b64(mapped[0], pred=where))


def set_registers(kind: str, count: int) -> None:
    """Emit ``setmaxnreg``: raise (``"inc"``) or lower (``"dec"``) a warpgroup's registers.

    With a ``count`` of 0 they stay as launched.
    """
    if count:
        build.evaluate(T.ptx[f"setmaxnreg.{kind}.sync.aligned.u32"](count))


def pin(registers: Sequence[Expr], kind: str = "float") -> None:
    """Emit an empty ``asm`` that reads and writes registers.

    The compiler knows no wgmma in flight: it may move a read of an accumulator before the wait. It
    cannot move one across this.

    Args:
        registers: Elements of a local buffer.
        kind: CUDA type of the registers, float or unsigned.
    """
    letter = {"float": "f", "unsigned": "r"}[kind]
    for first in range(0, len(registers), _MOST_PINNED):
        some = registers[first : first + _MOST_PINNED]
        name = f"{kind}_{len(some)}"
        parameters = ", ".join(f"{kind}& r{n}" for n in range(len(some)))
        operands = ", ".join(f'"+{letter}"(r{n})' for n in range(len(some)))
        source = _PIN.format(name, parameters, operands)
        build.evaluate(T.cuda.func_call(f"pin_{name}", *some, source_code=source))


def sync_threads_of(barrier: Expr | int, threads: int) -> None:
    """Emit ``bar.sync``: wait for ``threads`` threads at a named barrier."""
    if isinstance(barrier, int):
        barrier = const(barrier)
    build.evaluate(T.cuda.func_call("sync_threads_of", barrier, const(threads), source_code=_SYNC))


def arrive_at(barrier: Expr, threads: int) -> None:
    """Emit ``bar.arrive``: arrive at a named barrier of ``threads`` threads without waiting."""
    build.evaluate(T.cuda.func_call("arrive_at", barrier, const(threads), source_code=_ARRIVE))


def sync_cluster_relaxed() -> None:
    """Emit a cluster barrier with relaxed arrive: no memory ordering of earlier writes.

    A release would cost a fence of the whole GPU. mbarriers that were initialised before need
    their own fence (``fence.mbarrier_init``).
    """
    build.evaluate(T.cuda.func_call("sync_cluster_relaxed", source_code=_SYNC_CLUSTER))


def store_pair(pointer: Expr, dtype: str, first: Expr, second: Expr) -> None:
    """Emit a vector store of two ``dtype`` elements, given as float32 or int32."""
    row = dtypes.dtype(dtype)
    kind, vector = dtypes.dtype(row.accumulator).cuda, f"{row.cuda}2"
    body = f"*({vector}*)p = {row.cuda_from_floats or f'make_{vector}'}(a, b);"
    name = f"store_pair_{dtype}"
    source = _PAIR.format(name, kind, kind, body)
    build.evaluate(T.cuda.func_call(name, pointer, first, second, source_code=source))


def store_four(pointer: Expr, dtype: str, values: Sequence[Expr]) -> None:
    """Emit a vector store of four ``dtype`` elements, given as float32 or int32."""
    row = dtypes.dtype(dtype)
    kind, rounded = dtypes.dtype(row.accumulator).cuda, row.cuda_from_floats
    if rounded:
        body = (
            f"{row.cuda}2 lo = {rounded}(a, b), hi = {rounded}(c, d); "
            "*(uint2*)p = make_uint2(*(unsigned*)&lo, *(unsigned*)&hi);"
        )
    else:
        body = f"*({row.cuda}4*)p = make_{row.cuda}4(a, b, c, d);"
    name = f"store_four_{dtype}"
    source = _FOUR.format(name, kind, body)
    build.evaluate(T.cuda.func_call(name, pointer, *values, source_code=source))


def copy(target: tirx.Buffer, pointer: Expr, size: int) -> None:
    """Emit a load of ``size`` aligned bytes (2, 4, 8 or 16) from ``pointer`` into ``target``."""
    source = _COPY.format(_VECTOR[size], size)
    build.evaluate(
        T.cuda.func_call(f"copy_{size}", target.ptr_to([0]), pointer, source_code=source)
    )


def as_register(value: Expr, out: str) -> Expr:
    """Return ``value`` of dtype ``out`` as float32 or int32, unrounded, for :func:`store_pair`."""
    wide = "float32" if "float" in out else "int32"
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == wide and "float" in out:
        return value.value  # the store rounds
    return value if str(value.ty.dtype) == wide else T.cast(value, wide)
