"""RISC-V V dot product: 4 int8 products per 32-bit lane, from widening multiplies and adds.

V has no dot-product instruction. A product of two bytes fits 16 bits, a sum of products fits 32:
one widening multiply, then two pairwise additions of even and odd elements (deinterleaved by
narrowing shifts). The vector is two registers of accumulators; one register would leave half of
the widening multiply's result unused.
"""

from __future__ import annotations

from tvm import ir
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic, Emit
from tvmopt.kernels.cpu.intrinsics.llvm_functions import PURE

_CODE = {"uint8": "u8", "int8": "s8"}
_EXTEND = {"uint8": "zext", "int8": "sext"}
_WIDENING = {
    ("uint8", "int8"): "vwmulsu",
    ("int8", "int8"): "vwmul",
    ("uint8", "uint8"): "vwmulu",
}


def _halves(value: str, elements: int, dtype: str) -> str:
    """Return LLVM IR that splits ``%value`` into ``%value0`` (even) and ``%value1`` (odd lanes)."""
    lines = []
    for odd in (0, 1):
        mask = ", ".join(f"i32 {i}" for i in range(odd, elements, 2))
        vector, chosen = f"<{elements} x {dtype}>", f"<{elements // 2} x i32>"
        lines.append(
            f"  %{value}{odd} = shufflevector {vector} %{value}, {vector} poison, {chosen} <{mask}>"
        )
    return "\n".join(lines)


def _source(name: str, data: str, weight: str, lanes: int) -> str:
    """Return the LLVM IR of the function ``name(sums, data, weight)``."""
    of_products = "zext" if data == weight == "uint8" else "sext"
    full, half = 4 * lanes, 2 * lanes
    return f"""
define linkonce_odr <{lanes} x i32> @{name}(
    <{lanes} x i32> %sums, <{full} x i8> %data, <{full} x i8> %weight) #0 {{
  %a = {_EXTEND[data]} <{full} x i8> %data to <{full} x i16>
  %b = {_EXTEND[weight]} <{full} x i8> %weight to <{full} x i16>
  %p = mul <{full} x i16> %a, %b
{_halves("p", full, "i16")}
  %e = {of_products} <{half} x i16> %p0 to <{half} x i32>
  %o = {of_products} <{half} x i16> %p1 to <{half} x i32>
  %w = add <{half} x i32> %e, %o
{_halves("w", half, "i32")}
  %q = add <{lanes} x i32> %w0, %w1
  %r = add <{lanes} x i32> %sums, %q
  ret <{lanes} x i32> %r
}}

attributes #0 = {{ {PURE} }}
"""


def _call(name: str, lanes: int) -> Emit:
    def emit(accumulator: ir.Expr, data: ir.Expr, weight: ir.Expr) -> ir.Expr:
        return T.call_extern(f"int32x{lanes}", name, accumulator, data, weight)

    return emit


def _rvv(bits: int, data: str, weight: str) -> DotIntrinsic:
    lanes = 2 * bits // 32
    code = f"rvv_{bits}_{_CODE[data]}{_CODE[weight]}"
    return DotIntrinsic(
        name=f"tvmopt.{code}",
        isa="riscv64",
        instruction=_WIDENING[data, weight],
        features=("zve64x", f"zvl{bits}b"),
        data=data,
        weight=weight,
        accumulator="int32",
        lanes=lanes,
        depth=4,
        emit=_call(f"tvmopt_{code}", lanes),
        function=_source(f"tvmopt_{code}", data, weight, lanes),
    )


RVV = tuple(_rvv(bits, *types) for bits in (256, 128) for types in _WIDENING)
