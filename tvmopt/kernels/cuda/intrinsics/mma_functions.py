"""TensorIR functions of the warp MMA intrinsics: what each computes, and the instructions for it.

Each function here returns a pair for ``s_tir.TensorIntrin.register``: the description, which TVM
matches, and the implementation. Fragments are buffers of shape ``(32 lanes, elements)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from tvmopt.device import dtypes

if TYPE_CHECKING:
    from tvmopt.kernels.cuda.intrinsics.mma import MmaIntrinsic

ROWS = COLUMNS = 16  # of an accumulator tile
LANES = 32  # of a warp
_LOCAL = ROWS * COLUMNS // LANES  # accumulators of a lane


def _fragment(handle: Any, mma: MmaIntrinsic, dtype: str) -> Any:
    """Declare an operand fragment in a TVMScript function."""
    shape = (LANES, mma.local)
    return T.match_buffer(handle, shape, dtype, align=64, offset_factor=mma.row, scope="local")


def _accumulator(handle: Any, dtype: str) -> Any:
    """Declare a 16 x 16 accumulator fragment in a TVMScript function."""
    return T.match_buffer(handle, (LANES, _LOCAL), dtype, align=64, offset_factor=8, scope="local")


def _shared(
    handle: Any, shape: tuple[int, int], dtype: str, factor: int, scope: str, strides: Any = None
) -> Any:
    """Declare a shared-memory tile in a TVMScript function, with a row pitch by ``strides``."""
    return T.match_buffer(
        handle, shape, dtype, align=64, offset_factor=factor, scope=scope, strides=strides
    )


def load_functions(mma: MmaIntrinsic, is_a: bool) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return description and implementation of the ldmatrix load of a fragment."""
    scope, row, depth, local = mma.scope, mma.row, mma.depth, mma.local
    dtype = mma.dtype if is_a else mma.weight
    along_k = mma.a_along_k if is_a else mma.b_along_k
    place = mma.place_a if is_a else mma.place_b
    height, width = (ROWS, depth) if along_k else (depth, ROWS)
    # Order of the four 8 x 8 matrices: the second one of a lies below the first, that of b along k.
    low_first = is_a == along_k

    def placed(r: Any, c: Any) -> tuple[Any, Any]:
        return place(r, c) if along_k else place(c, r)

    def offset(lane: Any, stride: Any) -> Any:
        if low_first:
            return stride * (lane % 16) + row * (lane // 16)
        return stride * (lane % 8 + 8 * (lane // 16)) + row * (lane // 8 % 2)

    transposed = not along_k

    @T.prim_func(s_tir=True)
    def definition(warp_handle: T.handle, shared_handle: T.handle) -> None:
        shared = _shared(shared_handle, (height, width), dtype, row, scope)
        warp = _fragment(warp_handle, mma, dtype)
        with T.sblock("root"):
            T.reads(shared[0:height, 0:width])
            T.writes(warp[0:LANES, 0:local])
            for ax0, ax1 in T.grid(height, width):
                with T.sblock("load"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    T.reads(shared[v0, v1])
                    lane, element = T.meta_var(placed(v0, v1))
                    T.writes(warp[lane, element])
                    warp[lane, element] = shared[v0, v1]

    @T.prim_func(s_tir=True)
    def implementation(warp_handle: T.handle, shared_handle: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        shared = _shared(shared_handle, (height, width), dtype, row, scope, [s0, s1])
        warp = _fragment(warp_handle, mma, dtype)
        with T.sblock("root"):
            T.reads(shared[0:height, 0:width])
            T.writes(warp[0:LANES, 0:local])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        transposed,
                        4,
                        ".b16",
                        warp.data,
                        warp.elem_offset,
                        shared.access_ptr("r"),
                        offset(tx, s0),
                        dtype=dtype,
                    )
                )

    return definition, implementation


def multiply_functions(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return description and implementation of mma.sync on fragments."""
    acc, depth, local = mma.accumulator, mma.depth, mma.local
    swapped, place_c = mma.swapped, mma.place_c

    def place_a(i: Any, _j: Any, k: Any) -> tuple[Any, Any]:
        return mma.place_a(i, k)

    def place_b(_i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return mma.place_b(j, k)

    def by_role(first: Any, second: Any) -> tuple[Any, Any]:
        return (second, first) if swapped else (first, second)

    place_x, place_y = (place_b, place_a) if swapped else (place_a, place_b)
    type_x, type_y = by_role(mma.dtype, mma.weight)
    instruction, short_acc = f"m16n8k{depth}", dtypes.dtype(acc).tvm_mma
    short_a, short_b = (
        dtypes.tensor_core_operand(name).tvm_mma for name in (mma.dtype, mma.weight)
    )

    def product(A: Any, B: Any, C: Any, half: int) -> Any:  # noqa: N803
        """Return the call of one m16n8 instruction, for 8 of the 16 columns."""
        return T.ptx_legacy.mma(
            instruction, "row", "col", short_a, short_b, short_acc,
            A.data, A.elem_offset,
            B.data, B.elem_offset + half * (local // 2),
            C.data, C.elem_offset + half * (_LOCAL // 2),
            False, dtype=acc,
        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def definition(first: T.handle, second: T.handle, c: T.handle) -> None:
        X = _fragment(first, mma, type_x)  # noqa: N806
        Y = _fragment(second, mma, type_y)  # noqa: N806
        C = _accumulator(c, acc)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL], X[0:LANES, 0:local], Y[0:LANES, 0:local])
            T.writes(C[0:LANES, 0:_LOCAL])
            for i, j, k in T.grid(ROWS, COLUMNS, depth):
                with T.sblock("mma"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane_x, at_x = T.meta_var(place_x(vi, vj, vk))
                    lane_y, at_y = T.meta_var(place_y(vi, vj, vk))
                    lane_c, at_c = T.meta_var(place_c(vi, vj))
                    T.reads(C[lane_c, at_c], X[lane_x, at_x], Y[lane_y, at_y])
                    T.writes(C[lane_c, at_c])
                    C[lane_c, at_c] = C[lane_c, at_c] + T.cast(X[lane_x, at_x], acc) * T.cast(
                        Y[lane_y, at_y], acc
                    )

    @T.prim_func(s_tir=True)
    def implementation(first: T.handle, second: T.handle, c: T.handle) -> None:
        X = _fragment(first, mma, type_x)  # noqa: N806
        Y = _fragment(second, mma, type_y)  # noqa: N806
        C = _accumulator(c, acc)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL], X[0:LANES, 0:local], Y[0:LANES, 0:local])
            T.writes(C[0:LANES, 0:_LOCAL])
            A, B = T.meta_var(by_role(X, Y))  # noqa: N806
            T.evaluate(product(A, B, C, 0))
            T.evaluate(product(A, B, C, 1))

    return definition, implementation


def zero_functions(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return description and implementation of zeroing the accumulators."""
    acc, place_c = mma.accumulator, mma.place_c

    @T.prim_func(s_tir=True)
    def definition(c: T.handle) -> None:
        C = _accumulator(c, acc)  # noqa: N806
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:_LOCAL])
            for i, j in T.grid(ROWS, COLUMNS):
                with T.sblock("zero"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane_c, at_c = T.meta_var(place_c(vi, vj))
                    T.reads()
                    T.writes(C[lane_c, at_c])
                    C[lane_c, at_c] = T.cast(0, acc)

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        C = _accumulator(c, acc)  # noqa: N806
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:_LOCAL])
            for n in T.serial(_LOCAL):
                C[0, n] = T.cast(0, acc)

    return definition, implementation


def store_functions(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return description and implementation of storing accumulators to shared memory."""
    acc, scope, place_c, at_c = mma.accumulator, mma.scope, mma.place_c, mma.at_c

    @T.prim_func(s_tir=True)
    def definition(c: T.handle, d: T.handle) -> None:
        C = _accumulator(c, acc)  # noqa: N806
        D = _shared(d, (ROWS, COLUMNS), acc, 2, scope)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL])
            T.writes(D[0:ROWS, 0:COLUMNS])
            for i, j in T.grid(ROWS, COLUMNS):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane_c, at_c = T.meta_var(place_c(vi, vj))
                    T.reads(C[lane_c, at_c])
                    T.writes(D[vi, vj])
                    D[vi, vj] = C[lane_c, at_c]

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle, d: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        C = _accumulator(c, acc)  # noqa: N806
        D = _shared(d, (ROWS, COLUMNS), acc, 2, scope, [s0, s1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL])
            T.writes(D[0:ROWS, 0:COLUMNS])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                for n in T.serial(_LOCAL):
                    row, column = T.meta_var(at_c(tx, n))
                    D[row, column] = C[0, n]

    return definition, implementation
