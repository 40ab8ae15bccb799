"""Probabilities of classes from the scores of pairs of classes, as one TensorIR function.

A sigmoid gives the probability of class i against class j (Platt scaling). The coupling of all
pairs is method 2 of Wu, Lin and Weng (2004): minimise ``sum over i != j of
(r_ji p_i - r_ij p_j)^2`` by coordinate descent, as LIBSVM, scikit-learn and ONNX Runtime do. The
descent of a row ends when no gradient exceeds ``0.005 / classes``, or after ``SWEEPS`` sweeps; both
belong to the result, which is not converged to more digits.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.scheduled import OPAQUE, SCHEDULED_ATTR

#: Most sweeps over the classes of a row.
SWEEPS = 100
#: Most classes: the quadratic form of a row is on the stack.
MOST_CLASSES = 100
_LEAST = 1e-7  # probability of a pair


def class_probabilities(rows: int, classes: int) -> tirx.PrimFunc:
    """Return the function.

    Its parameters are the scores of pairs (i, j) of classes with i < j, float32 (rows, pairs); the
    factor and the shift of each pair's sigmoid, float32 (pairs,); and the output, float32
    (rows, classes).
    """
    pairs = classes * (classes - 1) // 2
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, SCHEDULED_ATTR: True})
        given = tuple(
            build.arg(name, build.buffer(shape, "float32"))
            for name, shape in (("scores", (rows, pairs)), ("a", (pairs,)), ("b", (pairs,)))
        )
        out = build.arg("out", build.buffer((rows, classes), "float32"))
        with build.parallel(rows) as row:
            _Row(given, out, row, classes).emit()
    return builder.get()


def _float(value: float) -> Expr:
    return tirx.const(np.float32(value), "float32")


class _Row:
    """The descent of one row."""

    def __init__(
        self, given: tuple[tirx.Buffer, ...], out: tirx.Buffer, row: Expr, classes: int
    ) -> None:
        self._scores, self._a, self._b = given
        self._out = out
        self._q = build.alloc_buffer((classes, classes), "float32", scope="local")
        self._qp = build.alloc_buffer((classes,), "float32", scope="local")
        self._row, self._classes = row, classes
        self._total = build.alloc_buffer((1,), "float32", scope="local")
        self._error = build.alloc_buffer((1,), "float32", scope="local")
        self._wins = build.alloc_buffer((1,), "float32", scope="local")
        self._change = build.alloc_buffer((1,), "float32", scope="local")
        self._is_done = build.alloc_buffer((1,), "int32", scope="local")

    def emit(self) -> None:
        self._fill()
        build.buffer_store(self._is_done, tirx.const(0, "int32"), [0])
        with build.serial(SWEEPS), build.If(self._is_done[0] == 0), build.Then():
            self._measure()
            stop = self._error[0] < _float(0.005 / self._classes)
            with build.If(stop):
                with build.Then():
                    build.buffer_store(self._is_done, tirx.const(1, "int32"), [0])
                with build.Else(), build.serial(self._classes) as i:
                    self._step(i)

    def _fill(self) -> None:
        """Store the quadratic form, and the same probability for all classes."""
        with build.grid(self._classes, self._classes) as (i, j):
            build.buffer_store(self._q, _float(0), [i, j])
        with build.grid(self._classes, self._classes) as (i, j), build.If(i < j), build.Then():
            self._store_wins(i * (2 * self._classes - i - 1) // 2 + j - i - 1)
            wins = self._wins[0]
            loses = _float(1) - wins
            # r_ij is what i gets against j; its square counts for j, and the other way round.
            build.buffer_store(self._q, self._q[i, i] + loses * loses, [i, i])
            build.buffer_store(self._q, self._q[j, j] + wins * wins, [j, j])
            build.buffer_store(self._q, _float(0) - wins * loses, [i, j])
            build.buffer_store(self._q, _float(0) - wins * loses, [j, i])
        with build.serial(self._classes) as i:
            build.buffer_store(self._out, _float(1 / self._classes), [self._row, i])

    def _store_wins(self, pair: Expr) -> None:
        """Store the probability of the first class of a pair, which is neither 0 nor 1."""
        value = self._scores[self._row, pair] * self._a[pair] + self._b[pair]
        # The sigmoid of the value's size, so that exp cannot overflow.
        size = tirx.Select(value < _float(0), _float(0) - value, value)
        build.buffer_store(self._wins, _float(1) / (_float(1) + tirx.exp(_float(0) - size)), [0])
        is_high = value < _float(0)
        own = self._wins[0]
        build.buffer_store(self._wins, tirx.Select(is_high, own, _float(1) - own), [0])
        low, high = _float(_LEAST), _float(1 - _LEAST)
        build.buffer_store(self._wins, tirx.Select(own < low, low, own), [0])
        build.buffer_store(self._wins, tirx.Select(own > high, high, own), [0])

    def _measure(self) -> None:
        """Store ``Q p``, ``p Q p`` and the largest difference between them."""
        row = self._row
        build.buffer_store(self._total, _float(0), [0])
        with build.serial(self._classes) as i:
            build.buffer_store(self._qp, _float(0), [i])
            with build.serial(self._classes) as j:
                value = self._qp[i] + self._q[i, j] * self._out[row, j]
                build.buffer_store(self._qp, value, [i])
            value = self._total[0] + self._out[row, i] * self._qp[i]
            build.buffer_store(self._total, value, [0])
        build.buffer_store(self._error, _float(0), [0])
        with build.serial(self._classes) as i:
            difference = self._qp[i] - self._total[0]
            size = tirx.Select(difference < _float(0), _float(0) - difference, difference)
            with build.If(size > self._error[0]), build.Then():
                build.buffer_store(self._error, size, [0])

    def _step(self, i: Expr) -> None:
        """Move one probability to its minimum, and scale all so that their sum is 1."""
        row = self._row
        change = self._change
        own = self._q[i, i]
        build.buffer_store(change, (self._total[0] - self._qp[i]) / own, [0])
        build.buffer_store(self._out, self._out[row, i] + change[0], [row, i])
        scale = _float(1) + change[0]
        moved = self._total[0] + change[0] * (change[0] * own + _float(2) * self._qp[i])
        build.buffer_store(self._total, moved / scale / scale, [0])
        with build.serial(self._classes) as j:
            value = (self._qp[j] + change[0] * self._q[i, j]) / scale
            build.buffer_store(self._qp, value, [j])
            build.buffer_store(self._out, self._out[row, j] / scale, [row, j])
