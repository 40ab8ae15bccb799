"""Warp MMA intrinsics for TensorIR: ldmatrix loads and mma.sync on 16 x 16 accumulators.

One step multiplies 16 rows by 16 columns over 32 bytes of K: two ``m16n8`` instructions. Fragments
in a lane, for 16-bit operands (K = 16); ``e`` numbers the lane's elements::

    a[i, k]     k 0-7    k 8-15      b[j, k]     k 0-7    k 8-15      c[i, j]     j 0-7    j 8-15
    i 0-7       e 0-1    e 4-5       j 0-7       e 0-1    e 2-3       i 0-7       e 0-1    e 4-5
    i 8-15      e 2-3    e 6-7       j 8-15      e 4-5    e 6-7       i 8-15      e 2-3    e 6-7

    In each 8 x 8 matrix, lane 4 * (row % 8) + (column % 8) / 2 holds two neighbouring elements.

To a schedule, a fragment is a buffer of shape ``(32 lanes, elements)``, so that TVM can check the
computation; the maps of this module give lane and element. In the emitted code every lane uses
index ``[0, e]`` of its own registers. Indices of other lanes are never accessed: nvcc removes them.
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
_LOCAL = ROWS * COLUMNS // LANES  # accumulators of a lane
_ROW_BYTES = 16  # one row of an 8 x 8 matrix of 16-bit elements: the unit of ldmatrix
#: Operand dtypes, each with the accumulator dtypes of mma.sync, which reads float32 as TF32.
ACCUMULATORS = {
    name: (dtypes.dtype(name).accumulator,) for name in (*HALF_FLOATS, *BYTE_INTEGERS, "float32")
} | {"float16": ("float32", "float16")}


def ldmatrix_transposes(dtype: str) -> bool:
    """Return whether ldmatrix can transpose elements of ``dtype``: 16-bit ones only."""
    return dtypes.itemsize(dtype) == 2


@dataclasses.dataclass(frozen=True)
class MmaIntrinsic:
    """``acc[i, j] += sum_k a[i, k] * b[j, k]`` on a 16 x 16 accumulator tile, by one warp.

    Attributes:
        dtype: Dtype of ``a``, and of ``b`` unless ``other`` is set: a key of
            :data:`ACCUMULATORS`.
        accumulator: Accumulator dtype: ``"float32"``, ``"float16"`` (for float16) or ``"int32"``.
            float32 operands are read as TF32.
        a_along_k: Whether ``a`` is K-major in shared memory (``[i][k]``), else ``[k][i]``.
        b_along_k: Whether ``b`` is K-major (``[j][k]``), else ``[k][j]``, which needs 16 bits.
        swapped: Whether the multiplication is written ``b * a``, which TVM tells apart.
        other: Dtype of ``b`` where it differs: s8 x u8 or u8 x s8.
        scope: Storage scope of the shared memory.
    """

    dtype: str
    accumulator: str
    a_along_k: bool = True
    b_along_k: bool = True
    swapped: bool = False
    other: str = ""
    scope: str = "shared.dyn"

    def __post_init__(self) -> None:
        allowed = ACCUMULATORS.get(self.dtype, ())
        if self.accumulator not in allowed:
            raise ValueError(
                f"accumulators of {self.dtype} must be among {allowed}, but got {self.accumulator}"
            )
        if self.weight != self.dtype and not {self.dtype, self.weight} <= set(BYTE_INTEGERS):
            raise ValueError(f"only bytes differ in type, but got {self.dtype} and {self.weight}")
        if not ldmatrix_transposes(self.dtype) and not (self.a_along_k and self.b_along_k):
            raise ValueError(f"{self.dtype} must lie along k: ldmatrix transposes 16 bits only")

    @property
    def weight(self) -> str:
        """Dtype of ``b``."""
        return self.other or self.dtype

    @property
    def row(self) -> int:
        """Elements of one 16-byte ldmatrix row."""
        return int(_ROW_BYTES // dtypes.itemsize(self.dtype))

    @property
    def depth(self) -> int:
        """K extent of a step, in elements."""
        return 2 * self.row

    @property
    def local(self) -> int:
        """Elements of an operand fragment in a lane."""
        return ROWS * self.depth // LANES

    def place_a(self, i: Any, k: Any) -> tuple[Any, Any]:
        """Return lane and element of ``a[i, k]``."""
        row, part = self.row, self.row // 4
        lane = 4 * (i % 8) + (k % row) // part
        return lane, (row // 2) * (k // row) + part * (i // 8) + k % part

    def place_b(self, j: Any, k: Any) -> tuple[Any, Any]:
        """Return lane and element of ``b[j, k]``."""
        row, part = self.row, self.row // 4
        lane = 4 * (j % 8) + (k % row) // part
        return lane, (row // 2) * (j // 8) + part * (k // row) + k % part

    @staticmethod
    def place_c(i: Any, j: Any) -> tuple[Any, Any]:
        """Return lane and element of ``acc[i, j]``."""
        return 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + 2 * (i // 8) + j % 2

    @staticmethod
    def at_c(lane: Any, element: Any) -> tuple[Any, Any]:
        """Return row and column of a lane's accumulator element: the inverse of :meth:`place_c`."""
        row = 8 * (element // 2 % 2) + lane // 4
        return row, 8 * (element // 4) + lane % 4 * 2 + element % 2

    def load_a(self) -> str:
        """Register the ldmatrix load of an ``a`` fragment; return its name for ``tensorize``."""
        along = "k" if self.a_along_k else "i"
        return _register(
            f"tvmopt.mma_load_a_{self.dtype}_{along}_{self.scope}", lambda: _load(self, True)
        )

    def load_b(self) -> str:
        """Register the ldmatrix load of a ``b`` fragment; return its name."""
        along = "k" if self.b_along_k else "j"
        return _register(
            f"tvmopt.mma_load_b_{self.weight}_{along}_{self.scope}", lambda: _load(self, False)
        )

    def multiply(self) -> str:
        """Register the mma.sync intrinsic; return its name."""
        order = "_swapped" if self.swapped else ""
        return _register(
            f"tvmopt.mma_{self.dtype}_{self.weight}_{self.accumulator}{order}",
            lambda: _multiply(self),
        )

    def zero(self) -> str:
        """Register the zeroing of the accumulators; return its name."""
        return _register(f"tvmopt.mma_zero_{self.accumulator}", lambda: _zero(self))

    def store(self) -> str:
        """Register the store of the accumulators to shared memory; return its name."""
        return _register(f"tvmopt.mma_store_{self.accumulator}_{self.scope}", lambda: _store(self))


def register_used(text: str) -> None:
    """Register the intrinsics that ``text`` names, so that schedule traces in it can replay."""
    if "tvmopt.mma_" not in text:
        return
    for mma in _ALL:
        if f"tvmopt.mma_{mma.dtype}_{mma.weight}_{mma.accumulator}" in text:
            for register in (mma.load_a, mma.load_b, mma.multiply, mma.zero, mma.store):
                register()


def _register(name: str, make: Any) -> str:
    if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
        s_tir.TensorIntrin.register(name, *make())
    return name


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


def _load(mma: MmaIntrinsic, is_a: bool) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
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


def _multiply(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
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


def _zero(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
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


def _store(mma: MmaIntrinsic) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
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


_ALL = (
    *(
        MmaIntrinsic(half, acc, a, b, swapped)
        for half in HALF_FLOATS
        for acc in ACCUMULATORS[half]
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
    *(MmaIntrinsic("float32", "float32", swapped=swapped) for swapped in (False, True)),
)
