"""exp of differences from a maximum, in the registers of a block of queries."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.attention.tiling import AttentionTiling

_LOG2_E = 1.4426950408889634
# Differences below it have an exp of 0; the result of others is a normal number.
_LEAST = -86.0
# Coefficients of 2^f for |f| <= 0.5, from the highest power: a fit with a relative error of 7.5e-8.
_POWERS = (0.0013276468962430954, 0.009675541892647743, 0.05550713464617729, 0.24022120237350464,
           0.6931469440460205, 1.0000001192092896)  # fmt: skip


class Exponential:
    """Emits ``exp(x)`` for ``x <= 0``; the absolute error is below 2e-7, NaN stays NaN.

    :func:`tvmopt.kernels.cpu.passes.vector_math.rewrite_math` is exact to 1 ulp for all ``x``, in
    three times as many instructions.

    Args:
        tiling: Its vectors.
    """

    def __init__(self, tiling: AttentionTiling) -> None:
        self._t = tiling
        shape = (tiling.vectors, tiling.lanes)
        self._x, self._fraction, self._n, self._power = (
            build.alloc_buffer(shape, "float32", scope="local") for _ in range(4)
        )

    def emit(self, argument: Callable[[Expr], Expr], store: Callable[[Expr, Expr], None]) -> None:
        """Emit one vector after another.

        Args:
            argument: Returns ``x`` of a query of the block.
            store: Emits the use of a query and its result.
        """
        x, t, n, p = self._x, self._fraction, self._n, self._power
        for v in range(self._t.vectors):
            place = v * self._t.lanes
            with build.vectorized(self._t.lanes) as lane:
                build.buffer_store(x, argument(place + lane), [v, lane])
            with build.vectorized(self._t.lanes) as lane:
                at = x[v, lane]
                kept = tirx.Select(at < _float(_LEAST), _float(_LEAST), at)
                build.buffer_store(t, kept * _float(_LOG2_E), [v, lane])
            with build.vectorized(self._t.lanes) as lane:
                build.buffer_store(n, tirx.nearbyint(t[v, lane]), [v, lane])
            with build.vectorized(self._t.lanes) as lane:
                build.buffer_store(t, t[v, lane] - n[v, lane], [v, lane])
            with build.vectorized(self._t.lanes) as lane:
                build.buffer_store(p, _float(_POWERS[0]), [v, lane])
            for coefficient in _POWERS[1:]:
                with build.vectorized(self._t.lanes) as lane:
                    build.buffer_store(p, p[v, lane] * t[v, lane] + _float(coefficient), [v, lane])
            with build.vectorized(self._t.lanes) as lane:
                exponent = tirx.shift_left(n[v, lane].astype("int32"), tirx.const(23, "int32"))
                bits = tirx.reinterpret("int32", p[v, lane]) + exponent
                value = tirx.reinterpret("float32", bits)
                store(place + lane, tirx.Select(x[v, lane] < _float(_LEAST), _float(0.0), value))


def _float(value: float) -> Expr:
    return tirx.const(value, "float32")
