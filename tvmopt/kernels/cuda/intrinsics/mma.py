"""CUDA tensor cores by warp (mma.sync): fragments loaded by ldmatrix, 16 x 16 sums a step.

A warp multiplies 16 rows by 16 columns over 32 bytes of depth: two instructions of 8 columns. The
operands' fragments and the sums lie in registers. A schedule sees a fragment as a buffer of shape
``(32 lanes, elements)``, so that TVM can check what it computes; the maps of this module say which
lane holds which element. The instructions keep what a lane holds in the first lane's place, on
every lane: the other places are never touched, and nvcc drops them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

from tvmopt.device import dtypes
from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS

ROWS = COLUMNS = 16
LANES = 32
_LOCAL = ROWS * COLUMNS // LANES  # sums that a lane holds
_ROW_BYTES = 16  # what one lane names to ldmatrix: a row of an 8 x 8 matrix of 16 bits
#: Dtypes of the operands, each with those of the accumulators that mma.sync has for it.
ACCUMULATORS = {
    name: (dtypes.dtype(name).accumulator,) for name in (*HALF_FLOATS, *BYTE_INTEGERS)
} | {"float16": ("float32", "float16")}


@dataclasses.dataclass(frozen=True)
class MmaIntrinsic:
    """``sums[i, j] += sum over k of a[i, k] * b[j, k]`` on 16 x 16 sums, by a warp.

    Attributes:
        dtype: Type of ``a``, and of ``b`` unless ``other`` says otherwise: a key of
            :data:`ACCUMULATORS`.
        sums: Type of the sums: ``"float32"``, ``"float16"`` (of float16) or ``"int32"``.
        a_along_k: Whether ``a`` lies in shared memory as ``[i][k]``, else as ``[k][i]``.
        b_along_k: Whether ``b`` lies as ``[j][k]``, else as ``[k][j]``; the latter only of 16 bits.
        swapped: Whether the product is written ``b * a``, which TVM tells apart.
        other: Type of ``b`` where it differs: bytes with a sign times bytes without, or the other
            way round.
        scope: Scope of the shared memory.
    """

    dtype: str
    sums: str
    a_along_k: bool = True
    b_along_k: bool = True
    swapped: bool = False
    other: str = ""
    scope: str = "shared.dyn"

    def __post_init__(self) -> None:
        allowed = ACCUMULATORS.get(self.dtype, ())
        if self.sums not in allowed:
            raise ValueError(f"sums must be one of {allowed} for {self.dtype}, but got {self.sums}")
        if self.weight != self.dtype and not {self.dtype, self.weight} <= set(BYTE_INTEGERS):
            raise ValueError(f"only bytes differ in type, but got {self.dtype} and {self.weight}")
        if self.dtype in BYTE_INTEGERS and not (self.a_along_k and self.b_along_k):
            raise ValueError("bytes must lie along k: ldmatrix transposes 16 bits only")

    @property
    def weight(self) -> str:
        """Type of ``b``."""
        return self.other or self.dtype

    @property
    def row(self) -> int:
        """Elements of the 16 bytes that one lane names to ldmatrix."""
        return int(_ROW_BYTES // dtypes.itemsize(self.dtype))

    @property
    def depth(self) -> int:
        """Elements of k that a step takes."""
        return 2 * self.row

    @property
    def local(self) -> int:
        """Elements of an operand that a lane holds."""
        return ROWS * self.depth // LANES

    def place_a(self, i: Any, k: Any) -> tuple[Any, Any]:
        """Lane and place in it of ``a[i, k]``."""
        row, part = self.row, self.row // 4
        lane = 4 * (i % 8) + (k % row) // part
        return lane, (row // 2) * (k // row) + part * (i // 8) + k % part

    def place_b(self, j: Any, k: Any) -> tuple[Any, Any]:
        """Lane and place in it of ``b[j, k]``."""
        row, part = self.row, self.row // 4
        lane = 4 * (j % 8) + (k % row) // part
        return lane, (row // 2) * (j // 8) + part * (k // row) + k % part

    @staticmethod
    def place_c(i: Any, j: Any) -> tuple[Any, Any]:
        """Lane and place in it of ``sums[i, j]``."""
        return 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + 2 * (i // 8) + j % 2

    @staticmethod
    def at_c(lane: Any, element: Any) -> tuple[Any, Any]:
        """Row and column of what a lane holds: the inverse of :meth:`place_c`."""
        row = 8 * (element // 2 % 2) + lane // 4
        return row, 8 * (element // 4) + lane % 4 * 2 + element % 2

    def load_a(self) -> str:
        """Register what loads a fragment of ``a``; its name, for ``Schedule.tensorize``."""
        along = "k" if self.a_along_k else "i"
        return _register(
            f"tvmopt.mma_load_a_{self.dtype}_{along}_{self.scope}", lambda: _load(self, True)
        )

    def load_b(self) -> str:
        """Register what loads a fragment of ``b``; its name."""
        along = "k" if self.b_along_k else "j"
        return _register(
            f"tvmopt.mma_load_b_{self.weight}_{along}_{self.scope}", lambda: _load(self, False)
        )

    def multiply(self) -> str:
        """Register what multiplies; its name."""
        order = "_swapped" if self.swapped else ""
        return _register(
            f"tvmopt.mma_{self.dtype}_{self.weight}_{self.sums}{order}", lambda: _multiply(self)
        )

    def zero(self) -> str:
        """Register what zeroes sums; its name."""
        return _register(f"tvmopt.mma_zero_{self.sums}", lambda: _zero(self))

    def store(self) -> str:
        """Register what stores sums to shared memory; its name."""
        return _register(f"tvmopt.mma_store_{self.sums}_{self.scope}", lambda: _store(self))


def register_used(text: str) -> None:
    """Register the intrinsics of the kinds that ``text`` names, so that traces in it can replay."""
    if "tvmopt.mma_" not in text:
        return
    for mma in _ALL:
        if f"tvmopt.mma_{mma.dtype}_{mma.weight}_{mma.sums}" in text:
            for register in (mma.load_a, mma.load_b, mma.multiply, mma.zero, mma.store):
                register()


def _register(name: str, make: Any) -> str:
    if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
        s_tir.TensorIntrin.register(name, *make())
    return name


def _fragment(handle: Any, mma: MmaIntrinsic, dtype: str) -> Any:
    """The registers of an operand, in a function of TVMScript."""
    shape = (LANES, mma.local)
    return T.match_buffer(handle, shape, dtype, align=64, offset_factor=mma.row, scope="local")


def _sums(handle: Any, dtype: str) -> Any:
    """The registers of 16 x 16 sums, in a function of TVMScript."""
    return T.match_buffer(handle, (LANES, _LOCAL), dtype, align=64, offset_factor=8, scope="local")


def _shared(
    handle: Any, shape: tuple[int, int], dtype: str, factor: int, scope: str, strides: Any = None
) -> Any:
    """A tile of shared memory, its rows apart where ``strides`` are given, likewise."""
    return T.match_buffer(
        handle, shape, dtype, align=64, offset_factor=factor, scope=scope, strides=strides
    )


def _load(mma: MmaIntrinsic, is_a: bool) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Shared memory to a fragment: definition and implementation."""
    scope, row, depth, local = mma.scope, mma.row, mma.depth, mma.local
    dtype = mma.dtype if is_a else mma.weight
    along_k = mma.a_along_k if is_a else mma.b_along_k
    place = mma.place_a if is_a else mma.place_b
    height, width = (ROWS, depth) if along_k else (depth, ROWS)
    # The four 8 x 8 matrices: of a, the second lies below the first; of b, beside it along k.
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


def _multiply(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Fragments multiplied into sums: definition and implementation."""
    sums, depth, local = mma.sums, mma.depth, mma.local
    swapped, place_c = mma.swapped, mma.place_c

    def place_a(i: Any, _j: Any, k: Any) -> tuple[Any, Any]:
        return mma.place_a(i, k)

    def place_b(_i: Any, j: Any, k: Any) -> tuple[Any, Any]:
        return mma.place_b(j, k)

    def by_role(first: Any, second: Any) -> tuple[Any, Any]:
        return (second, first) if swapped else (first, second)

    place_x, place_y = (place_b, place_a) if swapped else (place_a, place_b)
    type_x, type_y = by_role(mma.dtype, mma.weight)
    instruction, short_sums = f"m16n8k{depth}", dtypes.dtype(sums).tvm_mma
    short_a, short_b = (dtypes.dtype(name).tvm_mma for name in (mma.dtype, mma.weight))

    def product(A: Any, B: Any, C: Any, half: int) -> Any:  # noqa: N803
        """The instruction, which multiplies 8 of the 16 columns."""
        return T.ptx_legacy.mma(
            instruction, "row", "col", short_a, short_b, short_sums,
            A.data, A.elem_offset,
            B.data, B.elem_offset + half * (local // 2),
            C.data, C.elem_offset + half * (_LOCAL // 2),
            False, dtype=sums,
        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def definition(first: T.handle, second: T.handle, c: T.handle) -> None:
        X = _fragment(first, mma, type_x)  # noqa: N806
        Y = _fragment(second, mma, type_y)  # noqa: N806
        C = _sums(c, sums)  # noqa: N806
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
                    C[lane_c, at_c] = C[lane_c, at_c] + T.cast(X[lane_x, at_x], sums) * T.cast(
                        Y[lane_y, at_y], sums
                    )

    @T.prim_func(s_tir=True)
    def implementation(first: T.handle, second: T.handle, c: T.handle) -> None:
        X = _fragment(first, mma, type_x)  # noqa: N806
        Y = _fragment(second, mma, type_y)  # noqa: N806
        C = _sums(c, sums)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL], X[0:LANES, 0:local], Y[0:LANES, 0:local])
            T.writes(C[0:LANES, 0:_LOCAL])
            A, B = T.meta_var(by_role(X, Y))  # noqa: N806
            T.evaluate(product(A, B, C, 0))
            T.evaluate(product(A, B, C, 1))

    return definition, implementation


def _zero(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Sums set to zero: definition and implementation."""
    sums, place_c = mma.sums, mma.place_c

    @T.prim_func(s_tir=True)
    def definition(c: T.handle) -> None:
        C = _sums(c, sums)  # noqa: N806
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:_LOCAL])
            for i, j in T.grid(ROWS, COLUMNS):
                with T.sblock("zero"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane_c, at_c = T.meta_var(place_c(vi, vj))
                    T.reads()
                    T.writes(C[lane_c, at_c])
                    C[lane_c, at_c] = T.cast(0, sums)

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        C = _sums(c, sums)  # noqa: N806
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:_LOCAL])
            for n in T.serial(_LOCAL):
                C[0, n] = T.cast(0, sums)

    return definition, implementation


def _store(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Sums to shared memory: definition and implementation."""
    sums, scope, place_c, at_c = mma.sums, mma.scope, mma.place_c, mma.at_c

    @T.prim_func(s_tir=True)
    def definition(c: T.handle, d: T.handle) -> None:
        C = _sums(c, sums)  # noqa: N806
        D = _shared(d, (ROWS, COLUMNS), sums, 2, scope)  # noqa: N806
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
        C = _sums(c, sums)  # noqa: N806
        D = _shared(d, (ROWS, COLUMNS), sums, 2, scope, [s0, s1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:_LOCAL])
            T.writes(D[0:ROWS, 0:COLUMNS])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                for n in T.serial(_LOCAL):
                    row, column = T.meta_var(at_c(tx, n))
                    D[row, column] = C[0, n]

    return definition, implementation


_ALL = (
    *(
        MmaIntrinsic(half, sums, a, b, swapped)
        for half in HALF_FLOATS
        for sums in ACCUMULATORS[half]
        for a in (True, False)
        for b in (True, False)
        for swapped in (False, True)
    ),
    *(
        MmaIntrinsic(a, "int32", swapped=swapped, other=b)
        for a in BYTE_INTEGERS
        for b in BYTE_INTEGERS
        for swapped in (False, True)
    ),
)
