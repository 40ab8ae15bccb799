"""Keep accesses within their buffers: an index that is computed from data is clamped.

before -> after, of a buffer of 16 values::

    x[i[k] * 4 + j]   ->   x[max(min(i[k] * 4 + j, 15), 0)]

An operator defines what an index out of range gives (:mod:`tvmopt.transform.safe_indices`). This
pass, on lowered functions, is the last line behind all operators: no value of an input makes
compiled code read or write other memory. An index stays as it is where it depends on no data, or
where its bounds are proven; and in a function with the attribute ``INDICES_HOLD``, whose maker
checked the constants that all its indices come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvmopt.kernels.passes.each_function import change_each
from tvmopt.kernels.rewrite import with_accesses

#: Attribute of a function whose indices come from constants that were checked when it was made.
INDICES_HOLD = "tvmopt.indices_hold"


def clamp_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Clamp the indices of every lowered TensorIR function of ``mod``."""
    return change_each(mod, clamp_indices_in)


def clamp_indices_in(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return one lowered function in which no index from data leaves its buffer."""
    if (func.attrs or {}).get(INDICES_HOLD):
        return func
    indices = _Indices(func)

    def clamped(
        buffer: tirx.Buffer, at: Sequence[ir.Expr]
    ) -> tuple[tirx.Buffer, list[ir.Expr]] | None:
        new = indices.clamped(buffer, at)
        return None if new is None else (buffer, new)

    if not indices.any_from_data:
        return func
    return func.with_body(with_accesses(func.body, clamped))


class _Indices:
    """Known bounds of the indices of a function."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._values: dict[tirx.Var, ir.Expr] = {}
        self._from_data: dict[tirx.Var, bool] = {}
        self._bounds = sym.Analyzer()
        accesses: list[Sequence[ir.Expr]] = []

        def note(binding: Any) -> None:
            self._values[binding.var] = binding.value

        def bind(loop: tirx.For) -> None:
            self._bounds.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))

        tvm_ffi.structural_walk(
            func.body,
            [
                (tirx.Let, note),
                (tirx.Bind, note),
                (tirx.For, bind),
                (ir.TensorLoad, lambda load: accesses.append(load.indices)),
                (tirx.BufferStore, lambda store: accesses.append(store.indices)),
            ],
            order="post",
        )
        self.any_from_data = any(self._is_from_data(i) for each in accesses for i in each)

    def clamped(self, buffer: tirx.Buffer, indices: Sequence[ir.Expr]) -> list[ir.Expr] | None:
        """Return indices within ``buffer``; None if the given ones are."""
        new = [self._clamp(i, size) for i, size in zip(indices, buffer.shape, strict=True)]
        same = all(a is b for a, b in zip(new, indices, strict=True))
        return None if same else new

    def _clamp(self, index: ir.Expr, size: ir.Expr) -> ir.Expr:
        if not self._is_from_data(index) or self._is_within(index, size):
            return index
        if isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm):
            reach = (int(index.lanes) - 1) * int(index.stride.value)
            base = _between(index.base, max(-reach, 0), size - (1 + max(reach, 0)))
            return tirx.Ramp(base, index.stride, index.lanes)
        return _between(index, 0, size - 1)

    def _is_from_data(self, index: ir.Expr) -> bool:
        if isinstance(index, tirx.IntImm):
            return False
        found: list[Any] = []
        loads = (ir.TensorLoad, found.append)
        tvm_ffi.structural_walk(index, loads, order="post")
        if found:
            return True
        variables: list[tirx.Var] = []
        tvm_ffi.structural_walk(index, (tirx.Var, variables.append), order="post")
        return any(self._holds_data(variable) for variable in variables)

    def _holds_data(self, variable: tirx.Var) -> bool:
        if variable not in self._from_data:
            value = self._values.get(variable)
            self._from_data[variable] = value is not None and self._is_from_data(value)
        return self._from_data[variable]

    def _is_within(self, index: ir.Expr, size: ir.Expr) -> bool:
        if not isinstance(size, tirx.IntImm):
            return False
        bound = self._bounds.const_int_bound(self._bounds.simplify(self._inlined(index)))
        return bound.min_value >= 0 and bound.max_value < int(size.value)

    def _inlined(self, expr: ir.Expr) -> ir.Expr:
        """Return ``expr`` with the values of bound variables."""

        def on_variable(variable: tirx.Var) -> ir.Expr:
            value = self._values.get(variable)
            return variable if value is None else self._inlined(value)

        return tvm_ffi.structural_map(expr, (tirx.Var, on_variable), order="post")


def _between(index: ir.Expr, low: int, high: ir.Expr) -> ir.Expr:
    dtype, _, lanes = str(index.ty.dtype).partition("x")

    def bound(value: ir.Expr) -> ir.Expr:
        return tirx.Broadcast(value, int(lanes)) if lanes else value

    return tirx.Max(tirx.Min(index, bound(high.astype(dtype))), bound(tirx.const(low, dtype)))
