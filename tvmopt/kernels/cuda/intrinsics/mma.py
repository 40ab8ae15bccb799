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
from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx

from tvmopt.device import dtypes
from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS
from tvmopt.kernels.cuda.intrinsics.mma_functions import (
    LANES,
    ROWS,
    load_functions,
    multiply_functions,
    store_functions,
    zero_functions,
)

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
            f"tvmopt.mma_load_a_{self.dtype}_{along}_{self.scope}",
            load_functions,
            self,
            True,
        )

    def load_b(self) -> str:
        """Register the ldmatrix load of a ``b`` fragment; return its name."""
        along = "k" if self.b_along_k else "j"
        return _register(
            f"tvmopt.mma_load_b_{self.weight}_{along}_{self.scope}",
            load_functions,
            self,
            False,
        )

    def multiply(self) -> str:
        """Register the mma.sync intrinsic; return its name."""
        order = "_swapped" if self.swapped else ""
        return _register(
            f"tvmopt.mma_{self.dtype}_{self.weight}_{self.accumulator}{order}",
            multiply_functions,
            self,
        )

    def zero(self) -> str:
        """Register the zeroing of the accumulators; return its name."""
        return _register(f"tvmopt.mma_zero_{self.accumulator}", zero_functions, self)

    def store(self) -> str:
        """Register the store of the accumulators to shared memory; return its name."""
        return _register(f"tvmopt.mma_store_{self.accumulator}_{self.scope}", store_functions, self)


def register_used(text: str) -> None:
    """Register the intrinsics that ``text`` names, so that schedule traces in it can replay."""
    if "tvmopt.mma_" not in text:
        return
    for mma in _ALL:
        if f"tvmopt.mma_{mma.dtype}_{mma.weight}_{mma.accumulator}" in text:
            for register in (mma.load_a, mma.load_b, mma.multiply, mma.zero, mma.store):
                register()


def _register(name: str, make: Callable[..., tuple[tirx.PrimFunc, tirx.PrimFunc]], *of: Any) -> str:
    """Register the functions that ``make(*of)`` returns, unless ``name`` is known; return it."""
    if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
        s_tir.TensorIntrin.register(name, *make(*of))
    return name


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
