"""PTX and TIRx building blocks of the Hopper kernels: mbarrier, TMA, setmaxnreg, vector stores.

Every function emits into the innermost frame of the active ``IRBuilder``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes

_TMA_LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_TMA_STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"

_PAIR = "__forceinline__ __device__ void {}(void* p, {} a, {} b) {{ {} }}\n"
_FOUR = "__forceinline__ __device__ void {0}(void* p, {1} a, {1} b, {1} c, {1} d) {{ {2} }}\n"
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


def const(value: int, dtype: str = "int32") -> Any:
    """Return a constant of dtype ``dtype``."""
    return tirx.const(value, dtype)


def quotient(a: Any, b: Any) -> Any:
    """Return ``a / b`` of non-negative numbers; TVM's floor division also handles signs."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return tirx.truncdiv(a, b)


def remainder(a: Any, b: Any) -> Any:
    """Return ``a % b`` of non-negative numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return tirx.truncmod(a, b)


class Scalar:
    """A mutable per-thread variable in a register."""

    def __init__(self, dtype: str, value: Any) -> None:
        self._dtype = dtype
        self._buffer = build.alloc_local([1], dtype)
        self.value = self._buffer[0]
        self.set(value)

    def set(self, value: Any) -> None:
        """Assign ``value``."""
        if isinstance(value, int):
            value = const(value, self._dtype)
        build.buffer_store(self._buffer, value, [0])


def held(value: Any) -> Any:
    """Materialise ``value`` in a register.

    TVM's code generator repeats a bound expression at every use, even reads of special registers
    and divisions in the innermost loop.
    """
    if isinstance(value, (int, tirx.IntImm)):
        return value
    return Scalar(str(value.ty.dtype), value).value


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Emit the body under ``if (condition)``."""
    with build.If(condition), build.Then():
        yield


@contextmanager
def one_thread_of(warp: Any) -> Iterator[None]:
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

    def __init__(self, pool: Any, count: int) -> None:
        self._count = count
        self._buffer = pool.alloc((count,), "uint64", align=8)

    def init(self, arrivals: int) -> None:
        """Initialise every mbarrier with its arrival count; for one thread."""
        for slot in range(self._count):
            build.evaluate(
                T.ptx.mbarrier.init.shared.b64(self._buffer.ptr_to([slot]), T.uint32(arrivals))
            )

    def pointer(self, slot: Any) -> Any:
        """Return the address of one mbarrier."""
        return self._buffer.ptr_to([slot])

    def wait(self, slot: Any, phase: Any) -> None:
        """Wait until the phase with parity ``phase`` completes."""
        build.evaluate(T.cuda.mbarrier_wait(self.pointer(slot), phase))

    def expect(self, slot: Any, count: Any) -> None:
        """Arrive and expect ``count`` transaction bytes (``arrive.expect_tx``)."""
        count = T.uint32(count) if isinstance(count, int) else T.cast(count, "uint32")
        build.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(self.pointer(slot), count))

    def arrive(self, slot: Any, where: Any) -> None:
        """Arrive, in the threads for which ``where`` holds."""
        build.evaluate(
            T.ptx.mbarrier.arrive.shared.b64(self.pointer(slot), T.uint32(1), pred=where)
        )

    def arrive_remote(self, slot: Any, rank: Any, where: Any) -> None:
        """Arrive at the mbarrier of thread block ``rank`` of the cluster."""
        mapped = build.alloc_local([1], "uint32")
        build.evaluate(
            T.ptx.mapa.shared__cluster.u32(
                mapped[0], T.cuda.cvta_generic_to_shared(self.pointer(slot)), T.cast(rank, "uint32")
            )
        )
        build.evaluate(T.ptx.mbarrier.arrive.shared__cluster.b64(mapped[0], pred=where))


def tensor_map(
    buffer: Any,
    dtype: str,
    shape: Sequence[Any],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    steps: Sequence[int] = (),
    swizzle: int = 3,
    promotion: int = 2,
) -> Any:
    """Emit (in host code) a TMA descriptor: ``cuTensorMapEncodeTiled``.

    Args:
        buffer: The tensor, or a pointer to it.
        dtype: Its dtype.
        shape: Its extents, innermost first.
        strides: Strides in bytes of all dimensions but the innermost.
        box: Extents of the box that one TMA instruction copies.
        steps: Element strides of the box; 1 by default.
        swizzle: Shared-memory swizzle: 1, 2, 3 for 32, 64 and 128 bytes.
        promotion: L2 promotion: 0 none, 1, 2, 3 for 64, 128 and 256 bytes.

    Returns:
        The handle of the descriptor.
    """
    result = build.handle("tensormap")
    build.Bind(T.tvm_stack_alloca("tensormap", 1), var=result)
    rank = len(shape)
    build.evaluate(
        T.call_packed(
            "runtime.cuTensorMapEncodeTiled",
            result,
            dtype,
            rank,
            getattr(buffer, "data", buffer),
            *shape,
            *strides,
            *box,
            *(steps or (1,) * rank),
            0,
            swizzle,
            promotion,
            0,
        )
    )
    return result


def tma_load(target: Any, descriptor: Any, start: Sequence[Any], bar: Any, mask: Any = 0) -> None:
    """Emit a TMA load of a box; a nonzero ``mask`` multicasts it to these blocks of the cluster."""
    shared = not isinstance(mask, int) or mask != 0
    name = _TMA_LOAD.format(len(start)) + (".multicast::cluster" if shared else "")
    extra = [T.cast(mask, "uint16")] if shared else []
    build.evaluate(T.ptx[name](target, T.address_of(descriptor), *start, bar, *extra))


def tma_store(descriptor: Any, start: Sequence[Any], source: Any) -> None:
    """Emit a TMA store of a box."""
    build.evaluate(T.ptx[_TMA_STORE.format(len(start))](T.address_of(descriptor), *start, source))


def set_registers(kind: str, count: int) -> None:
    """Emit ``setmaxnreg``: raise (``"inc"``) or lower (``"dec"``) a warpgroup's register count."""
    build.evaluate(T.ptx[f"setmaxnreg.{kind}.sync.aligned.u32"](count))


def sync_threads_of(barrier: int, threads: int) -> None:
    """Emit ``bar.sync``: wait for ``threads`` threads at a named barrier."""
    build.evaluate(
        T.cuda.func_call("sync_threads_of", const(barrier), const(threads), source_code=_SYNC)
    )


def sync_cluster_relaxed() -> None:
    """Emit a cluster barrier with relaxed arrive: no memory ordering of earlier writes.

    A release would cost a fence of the whole GPU. mbarriers that were initialised before need
    their own fence (``fence.mbarrier_init``).
    """
    build.evaluate(T.cuda.func_call("sync_cluster_relaxed", source_code=_SYNC_CLUSTER))


def store_pair(pointer: Any, dtype: str, first: Any, second: Any) -> None:
    """Emit a vector store of two ``dtype`` elements, given as float32 or int32."""
    row = dtypes.dtype(dtype)
    kind, vector = dtypes.dtype(row.accumulator).cuda, f"{row.cuda}2"
    body = f"*({vector}*)p = {row.cuda_from_floats or f'make_{vector}'}(a, b);"
    name = f"store_pair_{dtype}"
    source = _PAIR.format(name, kind, kind, body)
    build.evaluate(T.cuda.func_call(name, pointer, first, second, source_code=source))


def store_four(pointer: Any, dtype: str, values: Sequence[Any]) -> None:
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


def copy(target: Any, pointer: Any, size: int) -> None:
    """Emit a load of ``size`` aligned bytes (2, 4, 8 or 16) from ``pointer`` into ``target``."""
    source = _COPY.format(_VECTOR[size], size)
    build.evaluate(
        T.cuda.func_call(f"copy_{size}", target.ptr_to([0]), pointer, source_code=source)
    )


def as_register(value: Any, out: str) -> Any:
    """Return ``value`` of dtype ``out`` as float32 or int32, unrounded, for :func:`store_pair`."""
    wide = "float32" if "float" in out else "int32"
    if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == wide and "float" in out:
        return value.value  # the store rounds
    return value if str(value.ty.dtype) == wide else T.cast(value, wide)
