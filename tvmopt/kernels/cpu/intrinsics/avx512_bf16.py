"""x86 AVX512-BF16 dot product: 2 bfloat16 products per float32 lane (``vdpbf16ps``).

``vdpbf16ps`` rounds to nearest even and flushes denormals, independent of MXCSR. TVM widens every
bfloat16 argument of an LLVM intrinsic to float32, so a wrapper function takes the bits as integers.
"""

from __future__ import annotations

from tvm import ir
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.llvm_functions import PURE

_NAME = "tvmopt_vdpbf16ps"
_SOURCE = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define linkonce_odr <16 x float> @{_NAME}(<16 x float> %sums, <32 x i16> %data, <32 x i16> %weight)
    #0 {{
  %a = bitcast <32 x i16> %data to <32 x bfloat>
  %b = bitcast <32 x i16> %weight to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %r
}}

attributes #0 = {{ {PURE} }}
"""

# Intel's CPUs with AMX take 2.0 cycles for a vdpbf16ps of 512 bits, and 0.5 for a vector FMA in
# float32. FMAs do twice the multiply-adds per cycle. Measured on an Emerald Rapids, see
# benchmarks/results/2026-11-29-bf16-dots.md.
_SLOW_WITH = ("amx-bf16",)


def _vdpbf16ps(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
    bits = [T.reinterpret("uint16x32", operand) for operand in (data, weight)]
    return T.call_extern("float32x16", _NAME, accumulator, *bits)


AVX512_BF16 = (
    DotIntrinsic(
        name="tvmopt.avx512_bf16",
        isa="x86_64",
        instruction="vdpbf16ps",
        features=("avx512bf16",),
        data="bfloat16",
        weight="bfloat16",
        accumulator="float32",
        lanes=16,
        depth=2,
        emit=_vdpbf16ps,
        function=_SOURCE,
        slow_with=_SLOW_WITH,
    ),
)
