"""Unpack int4 to floating point by bit operations, two float16 values at a time.

An integer conversion costs several instructions a value. Instead, place the bits in the mantissa of
a float whose exponent gives them their integer weight, and subtract the bias; with float16, two
values of a word share the instructions. All operations are exact: results equal the conversion's::

    float16:  0x6400 | v  =  1024 + v      0x6400 | v << 4  =  1024 + 16 v
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.prim.expr import BitwiseAnd, RShift

_WORDS = ("uint32", "int32")
# Largest offset for which float16 holds 1024 + offset exactly.
_MOST_OFFSET = 64

_FLOAT16 = """
__device__ __forceinline__ half tvmopt_int4_f16_{c}(unsigned int word, int shift, half scale) {{
  // Values i and i + 4 of a word lie 16 bits apart: the two halves of one register.
  const int place = (shift >> 2) & 3;
  const unsigned int part = (place & 2) ? (word >> 8) : word;
  unsigned int bits;
  half2 value;
  if (place & 1) {{
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // 1024 + 16 v
        : "=r"(bits) : "r"(part), "r"(0x00f000f0u), "r"(0x64006400u));
    unsigned int sixteenth = 0x2c002c00u, less = {odd};  // -(64 + {c})
    value = __hfma2(*reinterpret_cast<half2*>(&bits), *reinterpret_cast<half2*>(&sixteenth),
                    *reinterpret_cast<half2*>(&less));
  }} else {{
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // 1024 + v
        : "=r"(bits) : "r"(part), "r"(0x000f000fu), "r"(0x64006400u));
    unsigned int less = {even};  // 1024 + {c}
    value = __hsub2(*reinterpret_cast<half2*>(&bits), *reinterpret_cast<half2*>(&less));
  }}
  value = __hmul2(value, __half2half2(scale));
  return (shift & 16) ? __high2half(value) : __low2half(value);
}}
"""

_FLOAT32 = """
__device__ __forceinline__ float tvmopt_int4_f32_{c}(unsigned int word, int shift, float scale) {{
  // The bits stay where the mantissa's are, 12 or 16 from its end: 2048 + v, or 128 + v.
  const int place = shift >> 2;
  const int by = place < 2 ? 12 : place < 3 ? 4 : place < 5 ? 0 : place < 7 ? -8 : -12;
  const unsigned int part = by > 0 ? (word << by) : (word >> -by);
  const int at = shift + by;
  unsigned int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"  // a & b | c in one instruction
      : "=r"(bits) : "r"(part), "r"(15u << at), "r"((150u - at) << 23));
  const float value = __uint_as_float(bits);
  const float base = static_cast<float>(1 << (23 - at)) + {c}.0f;
  return __fmaf_rn(value, scale, -base * scale);
}}
"""


@dataclasses.dataclass(frozen=True)
class Nibble:
    """``((word >> shift) & 15) - offset``, cast to the floating-point ``dtype``."""

    word: ir.Expr
    shift: ir.Expr
    offset: int
    dtype: str

    @property
    def place(self) -> ir.Expr | None:
        """Index ``k`` where the word is a load and the shift ``k % 8 * 4``; None otherwise."""
        shift = self.shift
        while isinstance(shift, tirx.Cast):
            shift = shift.value
        if not isinstance(self.word, ir.TensorLoad) or not isinstance(shift, tirx.Mul):
            return None
        place = shift.a
        is_place = _whole(shift.b) == 4 and isinstance(place, tirx.FloorMod)
        return place.a if is_place and _whole(place.b) == 8 else None


def rewrite_int4(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace multiplications of a scale and a 4-bit value in ``func``; attributes are kept.

    Before -> after::

        W[k] = (Cast("float16", (w[k // 8] >> (k % 8 * 4)) & 15) - 8.0) * s[k // 128]
        W[k] = tvmopt_int4_f16_8(w[k // 8], k % 8 * 4, s[k // 128])

    A float32 product is replaced only if its scale is cast from a 16-bit float: then it is exact.
    """
    body = tvm_ffi.structural_map(func.body, (tirx.Mul, _on_product), order="post")
    return func.with_body(body)


def _on_product(product: tirx.Mul) -> ir.Expr:
    """Return the intrinsic in place of ``product``; ``product`` where it does not match."""
    for value, scale in ((product.a, product.b), (product.b, product.a)):
        nibble = nibble_of(value)
        if nibble is None or not 0 <= nibble.offset <= _MOST_OFFSET:
            continue
        source = {"float16": _FLOAT16, "float32": _FLOAT32}.get(nibble.dtype)
        if source is None or (nibble.dtype == "float32" and not _is_narrow(scale)):
            continue
        word = nibble.word
        if str(word.ty.dtype) == "int32":
            word = tirx.reinterpret("uint32", word)
        return cuda_func_call(
            f"tvmopt_int4_f{nibble.dtype[-2:]}_{nibble.offset}",
            word,
            nibble.shift.astype("int32"),
            scale,
            source_code=source.format(
                c=nibble.offset,
                even=_twice(1024 + nibble.offset),
                odd=_twice(-64 - nibble.offset),
            ),
            return_type=nibble.dtype,
        )
    return product


def nibble_of(value: ir.Expr) -> Nibble | None:
    """Match ``value`` as a 4-bit value minus an offset; None when it is something else."""
    offset = 0
    dtype = str(value.ty.dtype)
    while True:
        if isinstance(value, tirx.Sub | tirx.Add):
            number = _whole(value.b)
            if number is None:
                return None
            offset += number if isinstance(value, tirx.Sub) else -number
            value = value.a
        elif isinstance(value, tirx.Cast):
            if offset and "uint" in str(value.ty.dtype):
                return None  # negative values wrap around
            value = value.value
        elif isinstance(value, BitwiseAnd):
            shifted = value.a
            if _whole(value.b) != 15 or not isinstance(shifted, RShift):
                return None
            if str(shifted.a.ty.dtype) not in _WORDS:
                return None
            return Nibble(shifted.a, shifted.b, offset, dtype)
        else:
            return None


def _whole(expr: ir.Expr) -> int | None:
    if not isinstance(expr, tirx.FloatImm | tirx.IntImm):
        return None
    number = float(expr.value)
    return int(number) if number.is_integer() else None


def _is_narrow(scale: ir.Expr) -> bool:
    """Whether ``scale`` is a float32 cast from float16 or bfloat16."""
    return isinstance(scale, tirx.Cast) and str(scale.value.ty.dtype) in ("float16", "bfloat16")


def _twice(value: int) -> str:
    """Return the register literal with ``value`` as float16 in both halves."""
    bits = int(np.float16(value).view(np.uint16))
    return f"0x{bits:04x}{bits:04x}u"
