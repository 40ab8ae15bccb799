"""Online softmax of a block of scores in registers (Milakov and Gimelshein, arXiv 1805.02867).

A thread holds two rows of S, ``h`` = 0 and 1 (:mod:`tvmopt.kernels.cuda.hopper.wgmma`); the four
lanes of a quad share them. With ``c`` = scale * log2(e)::

    m' = max(m, row max of S)             two shuffles in the quad
    alpha = exp2(c m - c m')
    P = exp2(c S - c m')                  one FFMA and one MUFU an element
    l = alpha l + row sum of P            of the thread's own columns, added up at the end
    O = alpha O                           once the GEMM in flight has ended

Any number near the maximum would do in its place. So with ``lazy_rescale`` m stays, and alpha is 1,
where P grows to at most 2^8: most blocks then rescale nothing.

With ``integer_max`` the maximum compares bits as integers, three at a time (``VIMNMX3``). That is
the order of floats unless all are negative; then the thread compares floats.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.device_functions import (
    any_differs,
    fast_exp2,
    float_of_bits,
    from_lane_xor,
    larger_of,
    largest_bits,
)
from tvmopt.kernels.cuda.hopper.attention.gemms import AttentionGemms
from tvmopt.kernels.cuda.hopper.emit import Scalar, held, pin, when

_FLOAT = "float32"
LOG2_E = math.log2(math.e)
# Independent chains of a reduction over a row, to hide the latency of an instruction.
_CHAINS = 2
# Largest P without rescaling, as a power of two.
_MOST_GROWTH = 8.0


class OnlineSoftmax:
    """Running maximum and sum of the rows of a thread.

    Args:
        gemms: Scores, probabilities and output.
        dtype: Of the probabilities.
        factor: Factor on the scores: scale * log2(e); 1 where the scores are scaled already.
        guarded: Whether a row may have no key yet: its maximum is minus infinity.
    """

    def __init__(
        self, gemms: AttentionGemms, dtype: str, factor: float, guarded: bool,
        config: HopperAttentionConfig,
    ) -> None:  # fmt: skip
        self._gemms, self._guarded, self._config = gemms, guarded, config
        self._factor = tirx.const(factor, _FLOAT)
        self._pack = f"cvt.rn.{dtypes.dtype(dtype).ptx}x2.f32"
        self._max: tirx.Buffer = build.alloc_local([2], _FLOAT)
        self._sum: tirx.Buffer = build.alloc_local([2], _FLOAT)
        self._alpha: tirx.Buffer = build.alloc_local([2], _FLOAT)
        #: Whether some row maximum of the warp grew by more than ``_MOST_GROWTH``.
        self._grew = Scalar("int32", 0)

    def first(self) -> None:
        """Emit P and the running values of the first block of a tile."""
        self._step(None)

    def next(self) -> None:
        """Emit P in place of S, and the running values, of a further block."""
        self._step(self._alpha)

    def pack(self) -> None:
        """Round P to 16 bits, into the registers of the second GEMM."""
        g = self._gemms
        for i in range(int(g.probabilities.shape[0])):
            build.evaluate(
                T.ptx[self._pack](g.probabilities[i], g.scores[2 * i + 1], g.scores[2 * i])
            )

    def rescale(self) -> None:
        """Multiply the output by alpha."""
        if not self._config.lazy_rescale:
            self._multiply(self._alpha)
            return
        with when(self._grew.value > 0):
            self._multiply(self._alpha)

    def finish(self) -> None:
        """Divide the output by the row sums; a row without keys gives zeros."""
        one, zero = tirx.const(1, _FLOAT), tirx.const(0, _FLOAT)
        for h in range(2):
            for lane in (1, 2):
                self._set(self._sum, h, self._sum[h] + from_lane_xor(self._sum[h], lane))
            whole = self._sum[h]
            self._set(self._alpha, h, tirx.Select(whole == zero, zero, one / whole))
        self._multiply(self._alpha)

    def _step(self, alpha: tirx.Buffer | None) -> None:
        tops = self._integer_maxima() if self._config.integer_max else None
        for h in range(2):
            top = tops[h] if tops else self._maximum(self._columns(h))
            for lane in (1, 2):
                top = held(larger_of(top, from_lane_xor(top, lane)))
            if alpha is not None:
                top = held(larger_of(self._max[h], top))
                if self._config.lazy_rescale:
                    growth = (top - self._max[h]) * self._factor
                    small = growth <= tirx.const(_MOST_GROWTH, _FLOAT)
                    top = held(tirx.Select(small, self._max[h], top))
            shift = self._shift(top)
            if alpha is not None:
                self._set(alpha, h, fast_exp2(self._max[h] * self._factor - shift))
            self._set(self._max, h, top)
            self._exponentials(h, shift)
            total = self._total(h)
            if alpha is not None:
                total = self._sum[h] * alpha[h] + total
            self._set(self._sum, h, total)
        if alpha is not None and self._config.lazy_rescale:
            self._grew.set(any_differs([alpha[0], alpha[1]], 1.0, [self._sum[0], self._sum[1]]))
        pin([self._sum[0], self._sum[1]])

    def _shift(self, top: Expr) -> Expr:
        """Return the scaled maximum; 0 for a row without keys, whose P is then 0."""
        if self._guarded:
            lowest = tirx.const(-math.inf, _FLOAT)
            top = held(tirx.Select(top == lowest, tirx.const(0, _FLOAT), top))
        return held(top * self._factor)

    def _maximum(self, columns: list[Expr]) -> Expr:
        """Return the maximum of a thread's columns of one row."""
        chains = [held(columns[n]) for n in range(_CHAINS)]
        for n, column in enumerate(columns[_CHAINS:]):
            chains[n % _CHAINS] = held(larger_of(chains[n % _CHAINS], column))
        return held(larger_of(*chains))

    def _integer_maxima(self) -> list[Expr]:
        """Return the maxima of a thread's columns of both rows."""
        bits = []
        for h in range(2):
            chains = [Scalar("int32", -(2**31)) for _ in range(_CHAINS)]
            columns = self._columns(h)
            for n in range(0, len(columns), 2):
                chain = chains[n // 2 % _CHAINS]
                chain.set(largest_bits(chain.value, columns[n], columns[n + 1]))
            bits.append(held(T.max(chains[0].value, chains[1].value)))
        tops = [Scalar(_FLOAT, float_of_bits(one)) for one in bits]
        with when(T.min(bits[0], bits[1]) < 0):  # all scores of a row are negative
            for h in range(2):
                tops[h].set(self._maximum(self._columns(h)))
        return [top.value for top in tops]

    def _columns(self, h: int) -> list[Expr]:
        """Return a thread's scores of one row."""
        scores = self._gemms.scores
        return [scores[i] for i in range(int(scores.shape[0])) if i // 2 % 2 == h]

    def _exponentials(self, h: int, shift: Expr) -> None:
        scores = self._gemms.scores
        for i in range(int(scores.shape[0])):
            if i // 2 % 2 == h:
                self._set(scores, i, fast_exp2(scores[i] * self._factor - shift))

    def _total(self, h: int) -> Expr:
        """Return the sum of a thread's columns of one row."""
        columns = self._columns(h)
        chains = [held(columns[n]) for n in range(_CHAINS)]
        for n, column in enumerate(columns[_CHAINS:]):
            chains[n % _CHAINS] = held(chains[n % _CHAINS] + column)
        return held(chains[0] + chains[1])

    def _multiply(self, by: tirx.Buffer) -> None:
        output = self._gemms.output
        for i in range(int(output.shape[0])):
            self._set(output, i, output[i] * by[i // 2 % 2])

    def _set(self, buffer: tirx.Buffer, index: int, value: Expr) -> None:
        build.buffer_store(buffer, value, [index])
