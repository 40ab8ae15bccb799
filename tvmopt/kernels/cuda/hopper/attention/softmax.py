"""Online softmax of a block of scores in registers (Milakov and Gimelshein, arXiv 1805.02867).

A thread holds two rows of S, ``h`` = 0 and 1 (:mod:`tvmopt.kernels.cuda.hopper.wgmma`); the four
lanes of a quad share them. With ``c`` = scale * log2(e)::

    m' = max(m, row max of S)             two shuffles in the quad
    alpha = exp2(c m - c m')
    P = exp2(c S - c m')                  one FFMA and one MUFU an element
    l = alpha l + row sum of P            of the thread's own columns, added up at the end
    O = alpha O                           once the GEMM in flight has ended
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.attention.device_functions import (
    fast_exp2,
    from_lane_xor,
    larger_of,
)
from tvmopt.kernels.cuda.hopper.attention.gemms import AttentionGemms
from tvmopt.kernels.cuda.hopper.emit import held

_FLOAT = "float32"
LOG2_E = math.log2(math.e)
# Independent chains of a reduction over a row, to hide the latency of an instruction.
_CHAINS = 2


class OnlineSoftmax:
    """Running maximum and sum of the rows of a thread.

    Args:
        gemms: Scores, probabilities and output.
        dtype: Of the probabilities.
        factor: Factor on the scores: scale * log2(e); 1 where the scores are scaled already.
        guarded: Whether a row may have no key yet: its maximum is minus infinity.
    """

    def __init__(self, gemms: AttentionGemms, dtype: str, factor: float, guarded: bool) -> None:
        self._gemms, self._guarded = gemms, guarded
        self._factor = tirx.const(factor, _FLOAT)
        self._pack = f"cvt.rn.{dtypes.dtype(dtype).ptx}x2.f32"
        self._max: tirx.Buffer = build.alloc_local([2], _FLOAT)
        self._sum: tirx.Buffer = build.alloc_local([2], _FLOAT)
        self._alpha: tirx.Buffer = build.alloc_local([2], _FLOAT)

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
        scores = self._gemms.scores
        for h in range(2):
            columns = [scores[i] for i in range(int(scores.shape[0])) if i // 2 % 2 == h]
            top = self._maximum(columns)
            for lane in (1, 2):
                top = held(larger_of(top, from_lane_xor(top, lane)))
            if alpha is not None:
                top = held(larger_of(self._max[h], top))
            shift = self._shift(top)
            if alpha is not None:
                self._set(alpha, h, fast_exp2(self._max[h] * self._factor - shift))
            self._set(self._max, h, top)
            self._exponentials(h, shift)
            total = self._total(h)
            if alpha is not None:
                total = self._sum[h] * alpha[h] + total
            self._set(self._sum, h, total)

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

    def _exponentials(self, h: int, shift: Expr) -> None:
        scores = self._gemms.scores
        for i in range(int(scores.shape[0])):
            if i // 2 % 2 == h:
                self._set(scores, i, fast_exp2(scores[i] * self._factor - shift))

    def _total(self, h: int) -> Expr:
        """Return the sum of a thread's columns of one row."""
        scores = self._gemms.scores
        columns = [scores[i] for i in range(int(scores.shape[0])) if i // 2 % 2 == h]
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
