"""GEMM problem of a Hopper kernel: extents, dtypes, layouts, epilogue; and its signature."""

from __future__ import annotations

import dataclasses
import functools
import itertools

from tvm import tirx
from tvm.ir import Expr

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity
from tvmopt.kernels.cuda.hopper.split_float32 import GROUP, LEAST_K, PARTS, split_width
from tvmopt.kernels.workload import Refusal

#: Output dtypes, by operand dtype. float32 operands are multiplied as TF32.
OUTPUTS = {
    "float16": ("float16", "float32", "int8"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int32", "int8", "float16", "float32"),
    "float8_e4m3fn": ("float16", "bfloat16", "float32"),
    "float32": ("float32", "float16", "bfloat16"),
}
#: Bytes of an element, for every operand and output dtype.
BYTES = {
    dtype: int(dtypes.itemsize(dtype))
    for dtype in dict.fromkeys(itertools.chain(OUTPUTS, *OUTPUTS.values()))
}


#: Bytes of K in one pipeline stage (a K block): one atom of the 128-byte swizzle.
K_BLOCK_BYTES = 128
#: Most elements of an output: kernels index with int32.
MOST_ELEMENTS = 2**31 - 1


def needs_k_major(dtype: str) -> bool:
    """Return whether wgmma reads operands of ``dtype`` K-major only: all but 16-bit ones."""
    return BYTES[dtype] != 2


def ceil_div(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class KernelSignature:
    """Parameters of a kernel that replaces a PrimFunc.

    Attributes:
        buffers: Buffers of all parameters, in order.
        a: Index of A, or of the image.
        b: Index of B, or of the weight.
        out: Index of the output.
        inputs: Indices of the epilogue's inputs.
        rows: The dynamic number of rows, an expression; None where it is static.
    """

    buffers: tuple[tirx.Buffer, ...]
    a: int
    b: int
    out: int
    inputs: tuple[int, ...] = ()
    rows: Expr | None = None


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """``C[batch, m, n] = epilogue(sum_k A[batch, m, k] * B[batch, k, n])``.

    Attributes:
        m: Rows; the expected number if ``dynamic``.
        n: Columns.
        k: Reduction extent.
        dtype: Dtype of A and B.
        out: Dtype of C.
        batch: Batch extent.
        trans_a: Whether A is stored as ``[batch, k, m]``.
        trans_b: Whether B is stored as ``[batch, n, k]``.
        batch_a: Whether A has a batch axis; otherwise the whole batch shares it.
        batch_b: Whether B has a batch axis.
        dynamic: Whether the number of rows is known only at run time.
        split_float32: Whether float32 operands are split in TF32 parts (:mod:`.split_float32`), not
            rounded to TF32.
        epilogue: Elementwise epilogue; None to store the accumulator.
    """

    m: int
    n: int
    k: int
    dtype: str = "float16"
    out: str = "float16"
    batch: int = 1
    trans_a: bool = False
    trans_b: bool = True
    batch_a: bool = True
    batch_b: bool = True
    dynamic: bool = False
    split_float32: bool = False
    epilogue: Epilogue | None = None

    @property
    def accumulator(self) -> str:
        """Accumulator dtype."""
        return dtypes.dtype(self.dtype).accumulator

    def epilogue_or_cast(self) -> Epilogue:
        """Return the epilogue; by default a cast of the accumulator."""
        return self.epilogue or identity(
            self.accumulator, self.out, rank=3 if self.batch > 1 else 2
        )

    @property
    def elements(self) -> int:
        """Elements of C."""
        return self.batch * self.m * self.n

    @property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Rows and row length of A and of B as stored (of one batch entry)."""
        return (
            (self.k, self.m) if self.trans_a else (self.m, self.k),
            (self.n, self.k) if self.trans_b else (self.k, self.n),
        )

    @property
    def k_blocks(self) -> int:
        """K blocks, each 128 bytes of a row of an operand; with split operands, groups of them."""
        return ceil_div(self.k * BYTES[self.dtype], self.group * K_BLOCK_BYTES)

    @property
    def group(self) -> int:
        """Pipeline stages that each of ``k_blocks`` takes."""
        return GROUP if self.split_float32 else 1

    @property
    def parts(self) -> int:
        """Parts of each operand in a pipeline stage."""
        return PARTS if self.split_float32 else 1

    @property
    def row_elements(self) -> int:
        """Elements of a K-major row: K, or the TF32 parts of it."""
        return split_width(self.k) if self.split_float32 else self.k

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Whether A, and B, are transposed first, because wgmma reads them K-major only."""
        needed = needs_k_major(self.dtype)
        return needed and self.trans_a, needed and not self.trans_b

    @property
    def k_major(self) -> tuple[bool, bool]:
        """Whether A, and B, are K-major when wgmma reads them."""
        return not self.trans_a or self.transposed[0], self.trans_b or self.transposed[1]

    @property
    def packed(self) -> tuple[bool, bool]:
        """Whether A, and B, are packed first: split, transposed, or of a pitch that TMA refuses."""
        if self.split_float32:
            return True, True
        size = BYTES[self.dtype]
        (_, a), (_, b) = self.stored
        return self.transposed[0] or a * size % 16 != 0, self.transposed[1] or b * size % 16 != 0

    @property
    def _copied(self) -> tuple[int, int]:
        """Elements of a packed copy of A, and of B (of one batch entry), at most."""
        if self.split_float32:
            return self.m * self.row_elements, self.n * self.row_elements
        (rows_a, width_a), (rows_b, width_b) = self.stored
        return rows_a * (width_a + 16), rows_b * (width_b + 16)

    @property
    def packing_bytes(self) -> int:
        """Bytes that the packing kernel reads and writes."""
        factor = 3 if self.split_float32 else 2  # an element is read, its parts are written
        return sum(
            factor * count * width * (self.batch if batched else 1) * BYTES[self.dtype]
            for (count, width), batched, there in zip(
                self.stored, (self.batch_a, self.batch_b), self.packed, strict=True
            )
            if there
        )

    @functools.cached_property
    def refusal(self) -> Refusal | None:
        """Why no kernel of this family computes the problem; None where one does."""
        if self.dtype not in OUTPUTS:
            return Refusal(f"inputs must be of {', '.join(OUTPUTS)}, but are {self.dtype}")
        if self.out not in OUTPUTS[self.dtype]:
            allowed = ", ".join(OUTPUTS[self.dtype])
            return Refusal(f"the output of {self.dtype} must be of {allowed}, but is {self.out}")
        if min(self.m, self.n, self.k, self.batch) < 1:
            return Refusal("every extent must be at least 1")
        if self.elements > MOST_ELEMENTS:
            return Refusal(f"an output of {self.elements} elements has more than 2**31 - 1")
        size = BYTES[self.dtype]
        if self.split_float32 and self.k < LEAST_K:
            return Refusal(f"float32 operands are split from K = {LEAST_K} on, but K is {self.k}")
        if self.split_float32 and self.dynamic:
            return Refusal("float32 operands are split where the number of rows is static")
        if self.trans_a and self.dynamic:
            return Refusal("a transposed A must have a static number of rows")
        if self.dynamic and self.packed[0]:
            return Refusal(
                "TMA needs rows of a multiple of 16 bytes, but A has rows of "
                f"{self.k * size}, and their number is dynamic"
            )
        if any(
            there and self.batch * elements > MOST_ELEMENTS
            for there, elements in zip(self.packed, self._copied, strict=True)
        ):
            return Refusal("a copy of an operand has more than 2**31 - 1 elements")
        if self.dynamic and self.batch > 1:
            return Refusal("a batch needs a static number of rows")
        return None
