"""GELU for 16-bit outputs: the normal distribution function as a polynomial, without ``erff``.

before -> after, where the value is rounded to float16 or bfloat16::

    x * (0.5 + erf(x * sqrt(0.5)) * 0.5)     x * normal_cdf(x)
    0.5 * x * (1 + erf(x * sqrt(0.5)))       x * normal_cdf(x)

``normal_cdf`` takes 13 instructions, ``erff`` and the terms around it about 30. Its largest error
is 1.5e-6, so that GELU errs by at most ``1.5e-6 * abs(x)``: float16 rounds 1.0 by 4.9e-4. NaN and
infinities give the same results as before, because the factor ``x`` stays.

With ``tanh.approx.f32`` (largest relative error 2**-11) GELU would err by as much as float16
rounds. So the other form of GELU keeps ``tanhf``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.script import tirx as T  # noqa: N812

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.kernels.cpu.intrinsics.calls import called

#: The fit: ``z = SCALE * x``, ``cdf(x) = 0.5 + z * polynomial(z * z - 1)``, saturated to [0, 1].
#: Minimax over abs(x) <= 4.68 by linear programming. The highest coefficient is positive, so that
#: the value beyond saturates to the right side.
SCALE = 3.021823764e-01
COEFFICIENTS = (
    4.995327592e-01, -2.470155060e-01, 1.776583642e-01, -1.339513510e-01, 9.873402119e-02,
    -6.985106319e-02, 4.322011396e-02, -2.108066902e-02, 1.331661642e-02, -1.141554303e-02,
    4.405520391e-03,
)  # fmt: skip
#: Instructions of one call.
INSTRUCTIONS = 3.0 + len(COEFFICIENTS) - 1
_NAME = "normal_cdf"
_SQRT_HALF = math.sqrt(0.5)
_TOLERANCE = 1e-6  # relative, of constants


def _source() -> str:
    lines = [
        f"__forceinline__ __device__ float {_NAME}(float x) {{",
        f"  const float z = x * {SCALE:.9e}f, u = fmaf(z, z, -1.0f);",
        f"  float p = {COEFFICIENTS[-1]:.9e}f;",
        *(f"  p = fmaf(p, u, {c:.9e}f);" for c in COEFFICIENTS[-2::-1]),
        "  return __saturatef(fmaf(z, p, 0.5f));",
        "}",
    ]
    return "\n" + "\n".join(lines) + "\n"


_SOURCE = _source()


def narrow_gelu(expr: ir.Expr, out: str) -> ir.Expr:
    """Return ``expr`` with every float32 GELU approximated, if ``out`` is a 16-bit float dtype."""
    if out not in HALF_FLOATS:
        return expr
    return tvm_ffi.structural_map(expr, (tirx.Mul, _product), order="post")


def instructions(call: ir.Expr) -> float | None:
    """Return the instructions of a call that :func:`narrow_gelu` emits; None for others."""
    if not isinstance(call, ir.Call):
        return None
    names = [a.value for a in call.args if isinstance(a, ir.StringImm)]
    return INSTRUCTIONS if _NAME in names else None


def _product(product: tirx.Mul) -> ir.Expr:
    """Return a product without its factor ``1 + erf(x * sqrt(0.5))``, where ``x`` is a factor."""
    if str(product.ty.dtype) != "float32":
        return product
    factors = _factors(product)
    if any(instructions(factor) for factor in factors):  # a part of the product was replaced
        return _multiplied(factors, 1.0)
    for number, factor in enumerate(factors):
        found = _cdf(factor)
        if found is None:
            continue
        x, scale = found
        others = factors[:number] + factors[number + 1 :]
        if not any(tvm_ffi.structural_equal(x, other) for other in others):
            continue
        cdf = T.cuda.func_call(_NAME, x, source_code=_SOURCE, return_type="float32")
        return _multiplied([*others, cdf], scale)
    return product


def _multiplied(factors: Sequence[ir.Expr], scale: float) -> ir.Expr:
    """Return the product of factors and ``scale``, with at most one constant."""
    scale *= math.prod(float(f.value) for f in factors if isinstance(f, tirx.FloatImm))
    values = [f for f in factors if not isinstance(f, tirx.FloatImm)]
    product = functools.reduce(operator.mul, values)
    return product if _near(scale, 1.0) else product * tirx.const(scale, "float32")


def _factors(expr: ir.Expr) -> list[ir.Expr]:
    if isinstance(expr, tirx.Mul):
        return [*_factors(expr.a), *_factors(expr.b)]
    return [expr]


def _cdf(expr: ir.Expr) -> tuple[ir.Expr, float] | None:
    """Return ``x`` and ``s`` of ``s * normal_cdf(x)``, written with erf; None for others."""
    if not isinstance(expr, tirx.Add):
        return None
    for constant, other in ((expr.a, expr.b), (expr.b, expr.a)):
        if not isinstance(constant, tirx.FloatImm):
            continue
        erfs = [f for f in _factors(other) if called(f) == "erf"]
        scales = [f for f in _factors(other) if isinstance(f, tirx.FloatImm)]
        if len(erfs) != 1 or len(erfs) + len(scales) != len(_factors(other)):
            continue
        scale = float(constant.value)
        x = _over_sqrt_two(erfs[0].args[0])
        if x is not None and _near(math.prod(float(s.value) for s in scales), scale):
            return x, 2.0 * scale
    return None


def _over_sqrt_two(expr: ir.Expr) -> ir.Expr | None:
    """Return ``x`` of ``x * sqrt(0.5)`` or ``x / sqrt(2)``; None for others."""
    if isinstance(expr, tirx.Mul):
        for constant, x in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(constant, tirx.FloatImm) and _near(float(constant.value), _SQRT_HALF):
                return x
    if isinstance(expr, tirx.Div) and isinstance(expr.b, tirx.FloatImm):
        return expr.a if _near(float(expr.b.value), math.sqrt(2.0)) else None
    return None


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * abs(other)
