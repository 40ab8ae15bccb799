"""Vector math: exp, sigmoid, tanh, erf and some powers as polynomials that vectorise.

LLVM has no vector version of these calls and calls libm per lane (4 to 20 ns per element). Each
function here rewrites one call to arithmetic in float32 (float16 is computed in float32):

==========  ====================================================  ==================
call        method                                                error (measured)
==========  ====================================================  ==================
exp         Cephes expf: 2^n times a polynomial of degree 7       1 ulp
exp(x - m)  of a maximum m: 2^n times a polynomial of degree 5    absolute: 1.5e-7
sigmoid     1 / (1 + exp(-x))                                     2 ulp
tanh        Eigen ptanh: odd rational function, |x| <= 7.9        5 ulp
erf         Eigen erf: odd rational function, |x| <= 4            6 ulp
pow         square roots and products, exponents n/4 up to 4      4 ulp
==========  ====================================================  ==================

NaN, infinities and overflow give the same results as libm. In a softmax, where the argument of exp
is the difference from a maximum, denormal results become 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import ir, tirx

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
        5.0000001201e-1)  # fmt: skip
# exp(r) for |r| <= log(2) / 2: a fit with a relative error of 9.2e-8, exact for r = 0.
_EXP_OF_DIFFERENCE = (0.008290305733680725, 0.0418979749083519, 0.1666763722896576,
                      0.4999915063381195, 0.9999997019767761, 1.0)  # fmt: skip
# Adding it to a float32 rounds to an integer, plus the bias of exponents.
_ROUND = 1.5 * 2.0**23 + 127.0
_TANH_NUMERATOR = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
                   5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
                   4.89352455891786e-03)  # fmt: skip
_TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
                     4.89352518554385e-03)  # fmt: skip
_ERF_NUMERATOR = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06,
                  -5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03,
                  -1.60960333262415e-02)  # fmt: skip
_ERF_DENOMINATOR = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
                    -7.37332916720468e-03, -1.42647390514189e-02)  # fmt: skip

# Largest exponent of pow that becomes a product, in quarters.
_MOST_QUARTERS = 16
_LARGEST = 3.4028234663852886e38


def rewrite_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the math calls of this module's table in ``func``; attributes are kept.

    Before -> after::

        B[i] = T.exp(A[i])
        B[i] = T.Let(..., where={n: T.round(A[i] * log2(e)), ...})
    """
    max_buffers = max_buffers_of(func)

    def on_call(call: ir.Call) -> ir.Expr:
        below = is_exp_of_difference(call, max_buffers)
        rewrite = _exp_of_difference if below else _rewrite_of(call)
        if rewrite is None:
            return call
        dtype = str(call.args[0].ty.dtype)
        if dtype == "float32":
            return rewrite(call.args[0])
        if dtype == "float16":
            return rewrite(call.args[0].astype("float32")).astype("float16")
        return call

    body = tvm_ffi.structural_map(func.body, (ir.Call, on_call), order="post")
    # TVM's vectoriser visits the factors of a product twice, and fails on a Let in a factor.
    body = tvm_ffi.structural_map(body, (tirx.Mul, _bind_factors), order="post")
    return func.with_body(body)


def max_buffers_of(func: tirx.PrimFunc) -> set[tirx.Var]:
    """Return the buffers of ``func`` that hold results of max reductions."""
    found: set[tirx.Var] = set()

    def on_store(store: tirx.BufferStore) -> None:
        value, result = store.value, {store.buffer}
        if isinstance(value, tirx.Max) and (_loads(value.a, result) or _loads(value.b, result)):
            found.add(store.buffer)

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, on_store), order="post")
    return found


def is_exp_of_difference(call: ir.Call, max_buffers: set[tirx.Var]) -> bool:
    """Return whether ``call`` is ``exp(x - m)`` with ``m`` of ``max_buffers``, as in softmax."""
    if getattr(call.op, "name", "") != "tirx.exp":
        return False
    difference = call.args[0]
    is_wide = str(difference.ty.dtype) == "float32"
    return is_wide and isinstance(difference, tirx.Sub) and _loads(difference.b, max_buffers)


def _loads(expr: ir.Expr, buffers: set[tirx.Var]) -> bool:
    return isinstance(expr, ir.TensorLoad) and expr.source in buffers


def math_depth(node: tvm_ffi.Object) -> int:
    """Return the nesting depth of this module's functions in ``node``: 2 for ``exp(tanh(x))``."""
    calls: list[ir.Call] = []

    def on_call(call: ir.Call) -> None:
        if _rewrite_of(call) is not None:
            calls.append(call)

    tvm_ffi.structural_walk(node, (ir.Call, on_call), order="post")
    return max((1 + math_depth(call.args[0]) for call in calls), default=0)


def _rewrite_of(call: ir.Call) -> Callable[[ir.Expr], ir.Expr] | None:
    """Return the rewrite of ``call`` as a function of its first argument; None if it stays."""
    name = getattr(call.op, "name", "")
    if name != "tirx.pow":
        return _REWRITES.get(name)
    exponent = call.args[1]
    if not isinstance(exponent, tirx.FloatImm):
        return None
    quarters = 4.0 * float(exponent.value)
    if not quarters.is_integer() or not 0 < abs(quarters) <= _MOST_QUARTERS:
        return None
    return functools.partial(_power, quarters=int(quarters))


def _bind_factors(product: tirx.Mul) -> ir.Expr:
    a, b = product.a, product.b
    if _has_let(a):
        return _let("f", a, lambda v: _let("g", b, lambda w: v * w) if _has_let(b) else v * b)
    return _let("f", b, lambda v: a * v) if _has_let(b) else product


def _has_let(expr: ir.Expr) -> bool:
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append), order="post")
    return bool(found)


def _let(name: str, value: ir.Expr, body: Callable[[tirx.Var], ir.Expr]) -> ir.Expr:
    """Bind ``value`` to a fresh variable with Let, and return ``body`` of it."""
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _float(value: float) -> ir.Expr:
    return tirx.const(value, "float32")


def _horner(x: ir.Expr, coefficients: Sequence[float]) -> ir.Expr:
    """Return the polynomial in ``x`` by Horner's rule; coefficients from the highest power."""
    result = _float(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _float(coefficient)
    return result


def _exp(x: ir.Expr) -> ir.Expr:
    return _let("x", x, _exp_of_var)


def _exp_of_var(x: tirx.Var) -> ir.Expr:
    # Outside this range the result is 0 or infinity; the Selects return these, and pass NaN on.
    low, high = _float(-104.0), _float(88.8)
    clamped = tirx.Select(x < low, low, tirx.Select(x > high, high, x))

    def scaled(r: tirx.Var, n: tirx.Var) -> ir.Expr:
        polynomial = _horner(r, _EXP) * (r * r) + r + _float(1.0)
        # 2^n in two factors, because n ranges from -150 to 128.
        half = tirx.shift_right(n, tirx.const(1, "int32"))
        return polynomial * _power_of_two(half) * _power_of_two(n - half)

    def reduced(n: tirx.Var) -> ir.Expr:
        rest = clamped - n * _float(0.693359375) - n * _float(-2.12194440e-4)
        return _let("r", rest, lambda r: _let("k", n.astype("int32"), lambda k: scaled(r, k)))

    result = _let("n", tirx.floor(clamped * _float(1.44269504088896341) + _float(0.5)), reduced)
    result = tirx.Select(x > high, tirx.const(float("inf"), "float32"), result)
    return tirx.Select(tirx.NE(x, x), x, result)


def _exp_of_difference(x: ir.Expr) -> ir.Expr:
    """Return ``exp(x)``; below -87.7 it is 0, above 88.4 infinity, NaN stays NaN.

    ``x * log2(e) + _ROUND`` has the integer ``n + 127`` in its lowest bits. Shifted into the
    exponent, they are the bits of 2^n: 0 for n = -127, infinity for n = 128.
    """

    def of_rounded(c: tirx.Var, t: tirx.Var) -> ir.Expr:
        r = c - (t - _float(_ROUND)) * _float(0.6931471805599453)
        bits = tirx.shift_left(tirx.reinterpret("int32", t), tirx.const(23, "int32"))
        power = tirx.reinterpret("float32", bits)
        return _let("r", r, lambda r: _horner(r, _EXP_OF_DIFFERENCE) * power)

    def of_shifted(c: tirx.Var, s: tirx.Var) -> ir.Expr:
        # The limits are on two values: of both on one, LLVM makes a comparison and a blend.
        return _let("t", tirx.Min(s, _float(_ROUND + 128.0)), lambda t: of_rounded(c, t))

    def of_clamped(c: tirx.Var) -> ir.Expr:
        shifted = c * _float(1.44269504088896341) + _float(_ROUND)
        return _let("s", shifted, lambda s: of_shifted(c, s))

    return _let("c", tirx.Max(x, _float(-88.0)), of_clamped)


def _power_of_two(n: ir.Expr) -> ir.Expr:
    bits = tirx.shift_left(n + tirx.const(127, "int32"), tirx.const(23, "int32"))
    return tirx.reinterpret("float32", bits)


def _sigmoid(x: ir.Expr) -> ir.Expr:
    return _float(1.0) / (_float(1.0) + _exp(-x))


def _odd_rational(
    x: ir.Expr, limit: float, numerator: Sequence[float], denominator: Sequence[float]
) -> ir.Expr:
    """Return ``x P(x^2) / Q(x^2)`` with ``x`` clamped to +-limit; NaN stays NaN."""

    def of_square(c: tirx.Var) -> ir.Expr:
        return _let("s", c * c, lambda s: c * _horner(s, numerator) / _horner(s, denominator))

    def of_var(v: tirx.Var) -> ir.Expr:
        low, high = _float(-limit), _float(limit)
        return _let("c", tirx.Select(v < low, low, tirx.Select(v > high, high, v)), of_square)

    return _let("x", x, of_var)


def _tanh(x: ir.Expr) -> ir.Expr:
    return _odd_rational(x, 7.90531110763549805, _TANH_NUMERATOR, _TANH_DENOMINATOR)


def _erf(x: ir.Expr) -> ir.Expr:
    return _odd_rational(x, 4.0, _ERF_NUMERATOR, _ERF_DENOMINATOR)


def _power(x: ir.Expr, quarters: int) -> ir.Expr:
    """Return ``x ** (quarters / 4)``; local response normalisation uses 3/4."""
    whole, rest = divmod(abs(quarters), 4)

    def of_root(v: tirx.Var, root: ir.Expr) -> ir.Expr:
        roots = {1: [tirx.sqrt(root)], 2: [root], 3: [root, tirx.sqrt(root)]}
        factors = [*[v] * whole, *roots.get(rest, [])]
        product = functools.reduce(lambda a, b: a * b, factors)
        return _float(1.0) / product if quarters < 0 else product

    def of_var(v: tirx.Var) -> ir.Expr:
        return _let("s", tirx.sqrt(v), lambda root: of_root(v, root)) if rest else of_root(v, v)

    def unsigned(v: tirx.Var) -> ir.Expr:
        # Unlike sqrt, pow returns +0 and +infinity for fractional powers of -0 and -infinity.
        limit, infinity = _float(-_LARGEST), tirx.const(float("inf"), "float32")
        zero = _float(0.0)
        finite = tirx.Select(tirx.EQ(v, zero), zero, v)
        return _let("a", tirx.Select(v < limit, infinity, finite), of_var)

    return _let("x", x, unsigned if rest else of_var)


_REWRITES: dict[str, Callable[[ir.Expr], ir.Expr]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
}
