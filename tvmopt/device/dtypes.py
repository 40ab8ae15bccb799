"""The dtype table: one row per dtype, with every property that the package uses.

Properties of an instruction (shape of an mma, required CPU feature) stay with the instruction.
Names are TVM's: ``"float16"``, ``"bfloat16"``, ``"float8_e4m3fn"``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tvmopt.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class DType:
    """One dtype. An empty or zero default means that the property does not apply.

    Attributes:
        name: TVM's name.
        bits: Bits of one element in memory.
        kind: ``"float"``, ``"int"``, ``"uint"`` or ``"bool"``.
        accumulator: Accumulator dtype of GEMMs and convolutions.
        mantissa_bits: Stored bits of the mantissa of a float, without the implicit one.
        short: Abbreviation in task tables; empty if the name is short enough.
        ml_dtypes: Whether the NumPy type comes from ml_dtypes, because NumPy has none.
        onnx: Element type in ``onnx.TensorProto``, for dtypes of layers.
        ptx: Type in PTX instructions, ``"bf16"``.
        tvm_mma: Type in the arguments of TVM's ``ptx_legacy.mma``.
        cuda: Scalar type in CUDA C; the suffix ``2`` or ``4`` gives the vector type.
        cuda_from_floats: CUDA C function that rounds two floats to a pair of this dtype.
        cuda_sm: First compute capability, times ten, with arithmetic in this dtype.
        tensor_core_sm: First compute capability, times ten, with mma.sync for this dtype.
        cpu_rates: Linux CPU flags of multiply instructions for this dtype, each with the peak rate
            relative to float32. The first flag that a CPU has counts.
        dot_k: K granularity of dot-product instructions on CPUs (4 for VNNI int8); 1 without any.
        widened: Whether CPU vectors compute it in 32-bit lanes.
        buffer_dtype: Storage dtype of internal buffers in CPU functions, if not the dtype itself.
        exact_in: Other dtypes that kernels may read an operand as, because they represent every
            value.
        convertible: Whether layers can be converted from float32 to it.
        kernel_tolerance: Maximum difference of a kernel's output from the reference, relative to
            the largest reference value; 0 for equality. Reordering a sum of n terms changes it by
            about sqrt(n) roundings of the accumulator; the store adds one rounding of this dtype.
        model_tolerance: Maximum deviation of a model's outputs from the reference that rounding to
            this dtype and reordered reductions explain.
        min_cosine: Minimum cosine similarity of a converted model's outputs with the float32
            outputs. A dtype that breaks a model falls far below; the user sets the accuracy bar.
        cosine_loss: Maximum loss of this cosine that a proposed set of skipped layers may leave.
    """

    name: str
    bits: int
    kind: str
    accumulator: str
    mantissa_bits: int = 0
    short: str = ""
    ml_dtypes: bool = False
    onnx: int = 0
    ptx: str = ""
    tvm_mma: str = ""
    cuda: str = ""
    cuda_from_floats: str = ""
    cuda_sm: int = 0
    tensor_core_sm: int = 0
    cpu_rates: tuple[tuple[str, float], ...] = ()
    dot_k: int = 1
    widened: bool = False
    buffer_dtype: str = ""
    exact_in: tuple[str, ...] = ()
    convertible: bool = False
    kernel_tolerance: float = 0.0
    model_tolerance: float = 0.0
    min_cosine: float = 0.0
    cosine_loss: float = 0.0

    @property
    def itemsize(self) -> float:
        """Bytes of one element; 0.5 for int4."""
        return self.bits / 8

    @property
    def lane_bits(self) -> int:
        """Bits of a CPU vector lane for one element."""
        return 32 if self.widened else self.bits

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point dtype."""
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether it is a 16-bit float."""
        return self.is_float and self.bits == 16

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer dtype, signed or not; bool is none."""
        return self.kind in ("int", "uint")

    @property
    def significant_bits(self) -> int:
        """Significand bits: 24 for float32; value bits of an integer: 7 for int8."""
        return self.mantissa_bits + 1 if self.is_float else self.bits - (self.kind == "int")

    @property
    def lowest(self) -> int:
        """Smallest value of an integer dtype."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> int:
        """Largest value of an integer dtype."""
        return (1 << self.significant_bits) - 1

    def cpu_rate(self, flags: Collection[str]) -> float:
        """Return the peak rate relative to float32 of a CPU with features ``flags``."""
        return next((rate for flag, rate in self.cpu_rates if flag in flags), 1.0)

    @property
    def bits_dtype(self) -> str:
        """Unsigned integer dtype of the same size, for the bits of a float."""
        return f"uint{self.bits}"

    @property
    def magnitude_mask(self) -> int:
        """Mask of a float's bits without the sign bit."""
        return (1 << (self.bits - 1)) - 1

    @property
    def infinity_bits(self) -> int:
        """Bits of infinity in an IEEE 754 float; the magnitude of NaN is larger."""
        return self.magnitude_mask - ((1 << self.mantissa_bits) - 1)

    @property
    def numpy(self) -> np.dtype:
        """NumPy dtype, from ml_dtypes if NumPy has none; imports NumPy lazily."""
        return _numpy(self.name, self.ml_dtypes)


@functools.cache
def _numpy(name: str, extension: bool) -> np.dtype:
    import numpy

    if not extension:
        return numpy.dtype(name)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, name))


_TABLE = (
    DType(
        "float64", 64, "float", "float64", mantissa_bits=52, short="f64", onnx=11, ptx="f64",
        cuda="double", kernel_tolerance=1e-9,
    ),
    DType(
        "float32", 32, "float", "float32", mantissa_bits=23, short="f32", onnx=1, ptx="f32",
        tvm_mma="fp32", cuda="float", kernel_tolerance=2e-4, model_tolerance=1e-3, min_cosine=0.99,
    ),
    DType(
        "float16", 16, "float", "float32", mantissa_bits=10, short="f16", onnx=10, ptx="f16",
        tvm_mma="fp16", cuda="half", cuda_from_floats="__floats2half2_rn", tensor_core_sm=75,
        cpu_rates=(("amx_fp16", 16.0), ("avx512_fp16", 2.0), ("asimdhp", 2.0)),
        exact_in=("float32",), convertible=True,
        kernel_tolerance=1e-2, model_tolerance=2e-2, min_cosine=0.999, cosine_loss=1e-3,
    ),
    DType(
        "bfloat16", 16, "float", "float32", mantissa_bits=7, short="bf16", ml_dtypes=True, onnx=16,
        ptx="bf16", tvm_mma="bf16", cuda="__nv_bfloat16",
        cuda_from_floats="__floats2bfloat162_rn", cuda_sm=80, tensor_core_sm=80,
        cpu_rates=(("amx_bf16", 16.0), ("avx512_bf16", 2.0), ("bf16", 4.0)), dot_k=2,
        # TVM widens a bfloat16 buffer that a CPU function allocates to float32.
        buffer_dtype="uint16",
        exact_in=("float32",), convertible=True,
        # Only against wrong kernels, as of int8: the accuracy drop decides. A detector whose maps
        # are nearly zero where there is no object had 0.983, a text recogniser 0.946.
        kernel_tolerance=4e-2, model_tolerance=5e-2, min_cosine=0.9, cosine_loss=1e-3,
    ),
    DType(
        "float8_e4m3fn", 8, "float", "float32", mantissa_bits=3, ml_dtypes=True, ptx="e4m3",
        cuda_sm=89, tensor_core_sm=89, widened=True,
        exact_in=("float16", "bfloat16", "float32"), kernel_tolerance=0.13,
    ),
    DType(
        "float8_e5m2", 8, "float", "float32", mantissa_bits=2, ml_dtypes=True, ptx="e5m2",
        cuda_sm=89, tensor_core_sm=89, widened=True, kernel_tolerance=0.26,
    ),
    DType("int64", 64, "int", "int64", short="i64", onnx=7, ptx="s64"),
    DType(
        "int32", 32, "int", "int32", short="i32", onnx=6, ptx="s32", tvm_mma="int32", cuda="int"
    ),
    DType("int16", 16, "int", "int32", short="i16", ptx="s16", cuda="short"),
    DType(
        "int8", 8, "int", "int32", short="i8", onnx=3, ptx="s8", tvm_mma="int8", cuda="char",
        tensor_core_sm=80,
        cpu_rates=(
            ("amx_int8", 32.0), ("avx512_vnni", 4.0), ("avx_vnni", 4.0), ("i8mm", 8.0),
            ("asimddp", 4.0), ("avx2", 2.0),
        ),
        dot_k=4, exact_in=("int16", "int32"), convertible=True, min_cosine=0.9, cosine_loss=1e-2,
    ),
    DType("int4", 4, "int", "int32", ml_dtypes=True, ptx="s4", tvm_mma="int4", widened=True),
    DType("uint64", 64, "uint", "uint64", short="u64", ptx="u64"),
    DType("uint32", 32, "uint", "uint32", short="u32", ptx="u32"),
    DType("uint16", 16, "uint", "int32", short="u16", ptx="u16", widened=True),
    DType(
        "uint8", 8, "uint", "int32", short="u8", onnx=2, ptx="u8", tvm_mma="uint8",
        tensor_core_sm=80, dot_k=4,
    ),
    DType("uint4", 4, "uint", "int32", ml_dtypes=True, ptx="u4", tvm_mma="uint4", widened=True),
    DType("bool", 8, "bool", "int32", widened=True),
    # Dtypes of tensors that no kernel computes in.
    *(
        DType(name, bits, "float", "float32", mantissa_bits=m, ml_dtypes=True, widened=True)
        for name, bits, m in (
            ("float8_e3m4", 8, 4), ("float8_e4m3", 8, 3), ("float8_e4m3b11fnuz", 8, 3),
            ("float8_e4m3fnuz", 8, 3), ("float8_e5m2fnuz", 8, 2), ("float8_e8m0fnu", 8, 0),
            ("float6_e2m3fn", 6, 3), ("float6_e3m2fn", 6, 2), ("float4_e2m1fn", 4, 1),
        )
    ),
)  # fmt: skip

#: All dtypes by name.
DTYPES = {row.name: row for row in _TABLE}
#: TensorFloat-32: what tensor cores read float32 operands as, with 10 bits of the mantissa. No
#: tensor has this dtype, so it is not in :data:`DTYPES`.
TF32 = DType(
    "tf32", 32, "float", "float32", mantissa_bits=10, ptx="tf32", tvm_mma="tf32",
    tensor_core_sm=80, kernel_tolerance=1e-2, model_tolerance=2e-2, min_cosine=0.999,
    cosine_loss=1e-3,
)  # fmt: skip


def tensor_core_operand(name: str) -> DType:
    """Return the dtype that tensor cores read an operand as: TF32 for float32, else its own."""
    return TF32 if name == "float32" else dtype(name)


def dtype(name: str) -> DType:
    """Return the row of a dtype.

    Args:
        name: TVM's name, without lanes: ``"float32"``, not ``"float32x4"``; or ``"tf32"``.

    Raises:
        ConfigError: When the table has no such dtype.
    """
    found = TF32 if name == TF32.name else DTYPES.get(name)
    if found is None:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, but got {name!r}")
    return found


@functools.cache  # cost models ask a million times for one network
def itemsize(name: str) -> float:
    """Return the bytes of one element; 0.5 for int4."""
    return dtype(name).itemsize


def names(where: Callable[[DType], bool]) -> tuple[str, ...]:
    """Return the names of the dtypes for which ``where`` is true, in table order."""
    return tuple(row.name for row in _TABLE if where(row))


#: 16-bit floats: ``("float16", "bfloat16")``.
HALF_FLOATS = names(lambda row: row.is_half)
#: Floats of 16 bits or more, with NaN and infinities as in IEEE 754.
FLOATS = names(lambda row: row.is_float and row.bits >= 16)
#: Floats of 32 bits or more.
WIDE_FLOATS = names(lambda row: row.is_float and row.bits >= 32)
#: 8-bit integers of quantised tensors: ``("int8", "uint8")``.
BYTE_INTEGERS = names(lambda row: row.is_integer and row.bits == 8)
