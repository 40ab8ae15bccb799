"""float32 GEMM with TF32 tensor cores: operands in two parts, three GEMMs, float32 accumulation.

A float32 number has 24 bits of mantissa, a TF32 number 11. So ``x = high + low``: ``high`` is ``x``
without the bits that TF32 lacks, ``low`` the rest, rounded to TF32. Then::

    a * b = high_a * high_b + high_a * low_b + low_a * high_b   (low_a * low_b is below 2**-20 a b)

Tensor cores truncate their accumulators, so they add only the 3 x 32 products of one K block; the
K blocks are added in float32, rounded to nearest. In a simulation of K from 256 to
8192 the largest error was 0.2 to 1.4 times that of a sequential float32 sum. Where registers
allow, a K block has separate accumulators while the sum before is added; but for the last K block
of a group, because ptxas does not see that a wgmma of an earlier iteration of a loop has ended.

``low`` has the sign of ``x`` and is zero only where ``x`` is (the smallest normal number in place
of zero): infinities and NaN come out as in a float32 GEMM, since an infinite ``high`` is
never multiplied by a zero that the other factor has not.

Subnormal numbers count as zero, and a result within a thousandth of the largest float32 may stay
finite where float32 overflows.

Method: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing
the FP32 theoretical peak performance", 2022; the sign of ``low`` is ours.

In memory the parts of a row take turns, a block (32 numbers) of ``high``, then one of ``low``; a
row has whole groups of K blocks, zero-padded.
"""

from __future__ import annotations

#: Parts of an operand; numbers of a K block of one part; K blocks of a group.
PARTS, BLOCK, GROUP = 2, 32, 2
#: Least K of operands that are split: below, the product of the low parts, which is left out, is
#: not small beside the few roundings of a float32 sum.
LEAST_K = 64
#: Part of the left and of the right operand in each product: 0 for ``high``, 1 for ``low``.
PRODUCTS = ((0, 0), (0, 1), (1, 0))

#: Numbers that a thread splits: 32 bytes of each part, a whole sector of memory.
PIECE = 8
_SPLIT = """
__forceinline__ __device__ void {name}(
    void* to, const void* from, long long pitch, int count) {{
  alignas(16) float values[{piece}];
  alignas(16) unsigned int high[{piece}], low[{piece}];
  const float* source = (const float*)from;
  {load}
  #pragma unroll
  for (int e = 0; e < {piece}; ++e) {{
    const float x = values[e];
    const unsigned int bits = __float_as_uint(x), sign = bits & 0x80000000u;
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    high[e] = (x != x ? bits | 0x00400000u : bits) & 0xffffe000u;
    const float rest = finite ? x - __uint_as_float(high[e]) : 0.0f;
    low[e] = (__float_as_uint(rest) + 0x00001000u) & 0xffffe000u;
    if (rest == 0.0f && x != 0.0f) low[e] = sign | 0x00800000u;
  }}
  #pragma unroll
  for (int e = 0; e < {piece}; e += 4) {{
    *(uint4*)((float*)to + e) = *(const uint4*)(high + e);
    *(uint4*)((float*)to + {block} + e) = *(const uint4*)(low + e);
  }}
}}
"""
_VECTOR_LOADS = """#pragma unroll
  for (int e = 0; e < {piece}; e += 4) *(float4*)(values + e) = *(const float4*)(source + e);"""
_SINGLE_LOADS = """#pragma unroll
  for (int e = 0; e < {piece}; ++e) values[e] = e < count ? source[e * pitch] : 0.0f;"""


def split_function(aligned: bool) -> tuple[str, str]:
    """Return name and text of ``f(to, from, pitch, count)``, which splits ``PIECE`` numbers.

    The first ``count`` lie ``pitch`` apart, the rest are zeros; the parts are stored a K block
    apart.

    Args:
        aligned: Whether all numbers are there, side by side and aligned to 16 bytes.
    """
    name = f"split_float32_{'vectors' if aligned else 'singles'}"
    load = (_VECTOR_LOADS if aligned else _SINGLE_LOADS).format(piece=PIECE)
    return name, _SPLIT.format(name=name, load=load, piece=PIECE, block=BLOCK)


def split_width(k: int) -> int:
    """Return the numbers of a row of ``k`` elements, split: two parts of whole groups."""
    return PARTS * GROUP * BLOCK * -(-k // (GROUP * BLOCK))
