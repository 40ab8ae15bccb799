"""What a Hopper kernel is asked to compute: sizes, types and layouts, apart from how."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from tvmopt.device import dtypes
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity

#: Types that come out, by the type that is multiplied.
OUTPUTS = {
    "float16": ("float16", "float32", "int8"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int32", "int8", "float16", "float32"),
    "float8_e4m3fn": ("float16", "bfloat16", "float32"),
}
#: Bytes of one element, of every type that is multiplied or comes out.
BYTES = {
    dtype: int(dtypes.itemsize(dtype))
    for dtype in dict.fromkeys(itertools.chain(OUTPUTS, *OUTPUTS.values()))
}


#: Places that 32 bits count: the most elements of an output.
MOST_ELEMENTS = 2**31 - 1


def ceil_div(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of a kernel that takes a function's place.

    Attributes:
        buffers: Of each parameter its shape and type.
        a: Number of the one that holds A, or the image.
        b: Number of the one that holds B, or the weight.
        out: Number of the output.
        inputs: Numbers of the epilogue's inputs.
        rows: How many rows there are at run time; None where their number is known.
    """

    buffers: tuple[Any, ...]
    a: int
    b: int
    out: int
    inputs: tuple[int, ...] = ()
    rows: Any = None


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """``C[batch, m, n] = epilogue(sum_k A[batch, m, k] * B[batch, k, n])``.

    Attributes:
        m: Rows; what is expected of them where they are ``dynamic``.
        n: Columns.
        k: Depth.
        dtype: Type of A and B.
        out: Type of C.
        batch: Products that are computed side by side.
        trans_a: Whether A is stored as ``[batch, k, m]``.
        trans_b: Whether B is stored as ``[batch, n, k]``.
        batch_a: Whether A has a batch axis; otherwise all products share it.
        batch_b: Whether B has one.
        dynamic: Whether the number of rows is known at run time only.
        epilogue: What is stored in place of the sum.
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
    epilogue: Epilogue | None = None

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return dtypes.dtype(self.dtype).accumulator

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity(
            self.accumulator, self.out, rank=3 if self.batch > 1 else 2
        )

    @property
    def elements(self) -> int:
        """Elements of C."""
        return self.batch * self.m * self.n

    @property
    def stored(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of A and of B the rows (of one product) and their elements, as memory holds them."""
        return (
            (self.k, self.m) if self.trans_a else (self.m, self.k),
            (self.n, self.k) if self.trans_b else (self.k, self.n),
        )

    @property
    def turned(self) -> tuple[bool, bool]:
        """Whether A, and B, are transposed first: the tensor cores want 8 bits along the depth."""
        narrow = BYTES[self.dtype] == 1
        return narrow and self.trans_a, narrow and not self.trans_b

    @property
    def major(self) -> tuple[bool, bool]:
        """Whether A, and B, are contiguous along the depth where they are multiplied from."""
        return not self.trans_a or self.turned[0], self.trans_b or self.turned[1]

    @property
    def copied(self) -> tuple[bool, bool]:
        """Whether A, and B, are copied first: turned, or rows that the copy engine refuses."""
        size = BYTES[self.dtype]
        (_, a), (_, b) = self.stored
        return self.turned[0] or a * size % 16 != 0, self.turned[1] or b * size % 16 != 0

    @property
    def copied_bytes(self) -> int:
        """Bytes that are read and written to copy operands first."""
        return sum(
            2 * count * width * (self.batch if batched else 1) * BYTES[self.dtype]
            for (count, width), batched, there in zip(
                self.stored, (self.batch_a, self.batch_b), self.copied, strict=True
            )
            if there
        )

    @functools.cached_property
    def why_not(self) -> str | None:
        """Why no kernel of this family computes it; None where one does."""
        if self.dtype not in OUTPUTS:
            return f"inputs must be of {', '.join(OUTPUTS)}, but are {self.dtype}"
        if self.out not in OUTPUTS[self.dtype]:
            allowed = ", ".join(OUTPUTS[self.dtype])
            return f"the output of {self.dtype} must be of {allowed}, but is {self.out}"
        if min(self.m, self.n, self.k, self.batch) < 1:
            return "every extent must be at least 1"
        if self.elements > MOST_ELEMENTS:
            return f"an output of {self.elements} elements has more than 2**31 - 1"
        size = BYTES[self.dtype]
        if self.trans_a and self.dynamic:
            return "a transposed A must have a static number of rows"
        if self.dynamic and self.copied[0]:
            return (
                "the copy engine needs rows of a multiple of 16 bytes, but those of A have "
                f"{self.k * size}, and their number is not known"
            )
        if any(
            there and self.batch * count * (width + 16) > MOST_ELEMENTS
            for there, (count, width) in zip(self.copied, self.stored, strict=True)
        ):
            return "a copy of an operand has more than 2**31 - 1 elements"
        if self.dynamic and self.batch > 1:
            return "a batch needs a static number of rows"
        return None

    def check(self) -> None:
        """Raise where there is no kernel.

        Raises:
            ConfigError: With the rule that is broken.
        """
        if reason := self.why_not:
            raise ConfigError(f"no Hopper kernel for this product: {reason}")
