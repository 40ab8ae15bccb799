"""Probabilities of classes from those of pairs of classes, as one TensorIR function.

The coupling of Wu, Lin and Weng (2004), method 2: minimise ``sum over i != j of
(r_ji p_i - r_ij p_j)^2`` by coordinate descent, as LIBSVM, scikit-learn and ONNX Runtime do. The
descent of a row ends when no gradient exceeds ``0.005 / classes``, or after ``SWEEPS`` sweeps; both
belong to the result, which is not converged to more digits.
"""

from __future__ import annotations

import itertools

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.scheduled import OPAQUE, SCHEDULED_ATTR

#: Most sweeps over the classes of a row.
SWEEPS = 100
_LEAST = 1e-7  # probability of a pair


def class_probabilities(rows: int, classes: int) -> tirx.PrimFunc:
    """Return the function.

    Its parameters are the probabilities of pairs, float32 (rows, pairs), where pair (i, j) holds
    that of i against j > i; and the output, float32 (rows, classes).
    """
    pairs = classes * (classes - 1) // 2
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, SCHEDULED_ATTR: True})
        given = build.arg("pairs", build.buffer((rows, pairs), "float32"))
        out = build.arg("out", build.buffer((rows, classes), "float32"))
        quadratic = build.alloc_buffer((rows, classes, classes), "float32", scope="global")
        gradient = build.alloc_buffer((rows, classes), "float32", scope="global")
        with build.parallel(rows) as row:
            _Row(given, out, quadratic, gradient, row, classes).emit()
    return builder.get()


def _float(value: float) -> Expr:
    return tirx.const(np.float32(value), "float32")


class _Row:
    """The descent of one row."""

    def __init__(
        self, given: tirx.Buffer, out: tirx.Buffer, quadratic: tirx.Buffer, gradient: tirx.Buffer,
        row: Expr, classes: int,
    ) -> None:  # fmt: skip
        self._given, self._out, self._q, self._qp = given, out, quadratic, gradient
        self._row, self._classes = row, classes
        self._total = build.alloc_buffer((1,), "float32", scope="local")
        self._error = build.alloc_buffer((1,), "float32", scope="local")
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
            build.buffer_store(self._q, _float(0), [self._row, i, j])
        for number, (i, j) in enumerate(itertools.combinations(range(self._classes), 2)):
            wins = self._bounded(number)
            loses = _float(1) - wins
            # r_ij is what i gets against j; its square counts for j, and the other way round.
            for at, term in ((i, loses * loses), (j, wins * wins)):
                value = self._q[self._row, at, at] + term
                build.buffer_store(self._q, value, [self._row, at, at])
            for at in ((i, j), (j, i)):
                build.buffer_store(self._q, _float(0) - wins * loses, [self._row, *at])
        with build.serial(self._classes) as i:
            build.buffer_store(self._out, _float(1 / self._classes), [self._row, i])

    def _bounded(self, pair: int) -> Expr:
        value = self._given[self._row, pair]
        low = tirx.Select(value < _float(_LEAST), _float(_LEAST), value)
        most = _float(1 - np.float32(_LEAST))
        return tirx.Select(low > most, most, low)

    def _measure(self) -> None:
        """Store ``Q p``, ``p Q p`` and the largest difference between them."""
        row = self._row
        build.buffer_store(self._total, _float(0), [0])
        with build.serial(self._classes) as i:
            build.buffer_store(self._qp, _float(0), [row, i])
            with build.serial(self._classes) as j:
                value = self._qp[row, i] + self._q[row, i, j] * self._out[row, j]
                build.buffer_store(self._qp, value, [row, i])
            value = self._total[0] + self._out[row, i] * self._qp[row, i]
            build.buffer_store(self._total, value, [0])
        build.buffer_store(self._error, _float(0), [0])
        with build.serial(self._classes) as i:
            difference = self._qp[row, i] - self._total[0]
            size = tirx.Select(difference < _float(0), _float(0) - difference, difference)
            with build.If(size > self._error[0]), build.Then():
                build.buffer_store(self._error, size, [0])

    def _step(self, i: Expr) -> None:
        """Move one probability to its minimum, and scale all so that their sum is 1."""
        row = self._row
        change = build.alloc_buffer((1,), "float32", scope="local")
        own = self._q[row, i, i]
        build.buffer_store(change, (self._total[0] - self._qp[row, i]) / own, [0])
        build.buffer_store(self._out, self._out[row, i] + change[0], [row, i])
        scale = _float(1) + change[0]
        moved = self._total[0] + change[0] * (change[0] * own + _float(2) * self._qp[row, i])
        build.buffer_store(self._total, moved / scale / scale, [0])
        with build.serial(self._classes) as j:
            value = (self._qp[row, j] + change[0] * self._q[row, i, j]) / scale
            build.buffer_store(self._qp, value, [row, j])
            build.buffer_store(self._out, self._out[row, j] / scale, [row, j])
