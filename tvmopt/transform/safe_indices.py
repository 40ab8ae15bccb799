"""Bounds-safe gathers and scatters: an index out of range never reads or writes other memory.

before -> after: ``take(table, ids, mode="fast")`` -> ``take(table, ids, mode="nan")``, or
``mode="clip"`` for integer tables. Of ``gather_elements``, ``gather_nd``, ``scatter_elements`` and
``scatter_nd``, the indices are clipped; the results of a gather are NaN where an index was out of
range, and the whole result of a scatter is.

TVM's kernels read and write wherever an index points to, or crash the process. ONNX Runtime rejects
such an index. Compiled code cannot reject it, so it returns NaN where the dtype has one, and takes
the nearest place otherwise. Constant indices within range do not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.precision.anchor_call import constant_data
from tvmopt.transform.rewrite import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="GuardIndices")
class GuardIndices:
    """Make every gather and scatter bounds-safe; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _IndexGuard(mod))


def safe_take(call: relax.Expr, lookup: Callable[[relax.Var], relax.Expr | None]) -> relax.Expr:
    """Return a bounds-safe ``take`` for one in the mode "fast" whose indices are no constant.

    Args:
        call: Any expression; all others stay as they are.
        lookup: Gives the expression that a variable is bound to.
    """
    if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.take"):
        return call
    table, indices = call.args
    known = lookup(indices) if isinstance(indices, relax.Var) else indices
    if call.attrs.mode != "fast" or constant_data(known) is not None:
        return call
    return relax.op.take(table, indices, call.attrs.axis, "nan" if _has_nan(table) else "clip")


@mutator
class _IndexGuard(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name not in _GUARDS:
            return call
        return _GUARDS[name](_Emitter(self.builder_, self.lookup_binding), call)


@dataclasses.dataclass(frozen=True)
class _Emitter:
    """Where the guards are emitted.

    Attributes:
        builder: Builder of the function.
        lookup: Gives the expression that a variable is bound to.
    """

    builder: relax.BlockBuilder
    lookup: Callable[[relax.Var], relax.Expr | None]

    def emit(self, value: relax.Expr) -> relax.Var:
        return self.builder.emit(value)

    def constant(self, value: relax.Expr) -> np.ndarray | None:
        """Return the array of a constant."""
        data = constant_data(self.lookup(value) if isinstance(value, relax.Var) else value)
        return None if data is None else data.numpy()

    def clipped(
        self, data: relax.Expr, indices: relax.Expr, axes: Sequence[int], *, negative: bool = False
    ) -> tuple[relax.Expr, relax.Expr | None]:
        """Return the indices within range, and where they were; None when all are known to be.

        Args:
            data: What the indices point into.
            indices: Indices of one axis, or vectors of indices, one for each axis, along the last.
            axes: Axes of ``data`` that are indexed.
            negative: Whether an index may count from the end.
        """
        dtype = str(indices.ty.dtype)
        sizes = np.array([int(data.ty.shape[axis]) for axis in axes])
        sizes = sizes[0] if len(axes) == 1 else sizes
        least, most = (-sizes if negative else 0 * sizes).astype(dtype), (sizes - 1).astype(dtype)
        known = self.constant(indices)
        if known is not None and bool(((known >= least) & (known <= most)).all()):
            return indices, None
        low, high = relax.const(least, dtype), relax.const(most, dtype)
        safe = self.emit(relax.op.minimum(self.emit(relax.op.maximum(indices, low)), high))
        return safe, self.emit(relax.op.equal(indices, safe))

    def all(self, inside: relax.Expr, axes: list[int] | None) -> relax.Expr:
        least = self.emit(relax.op.min(self.emit(relax.op.astype(inside, "int8")), axes))
        return self.emit(relax.op.astype(least, "bool"))

    def nan_unless(self, inside: relax.Expr, result: relax.Expr) -> relax.Expr:
        if not _has_nan(result):
            return result
        return relax.op.where(inside, result, relax.const(np.nan, str(result.ty.dtype)))


def _gather_elements(make: _Emitter, call: relax.Call) -> relax.Expr:
    data, indices = call.args
    axis = int(call.attrs.axis) % len(data.ty.shape)
    safe, inside = make.clipped(data, indices, [axis])
    if inside is None:
        return call
    return make.nan_unless(inside, make.emit(relax.op.gather_elements(data, safe, axis)))


def _gather_nd(make: _Emitter, call: relax.Call) -> relax.Expr:
    data, indices = call.args
    first, count = int(call.attrs.batch_dims), int(indices.ty.shape[-1])
    safe, inside = make.clipped(data, indices, range(first, first + count))
    if inside is None:
        return call
    found = make.emit(relax.op.gather_nd(data, safe, first))
    all_inside = make.all(inside, [-1])
    for _ in range(len(data.ty.shape) - first - count):
        all_inside = make.emit(relax.op.expand_dims(all_inside, -1))
    return make.nan_unless(all_inside, found)


def _scatter_elements(make: _Emitter, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(data.ty.shape)
    # TVM's kernel counts negative indices from the end, as ONNX does.
    safe, inside = make.clipped(data, indices, [axis], negative=True)
    if inside is None:
        return call
    reduction = str(call.attrs.reduction)
    made = make.emit(relax.op.scatter_elements(data, safe, updates, axis, reduction))
    return make.nan_unless(make.all(inside, None), made)


def _scatter_nd(make: _Emitter, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    safe, inside = make.clipped(data, indices, range(int(indices.ty.shape[-1])))
    if inside is None:
        return call
    made = make.emit(relax.op.scatter_nd(data, safe, updates, str(call.attrs.reduction)))
    return make.nan_unless(make.all(inside, None), made)


def _has_nan(value: relax.Expr) -> bool:
    return "float" in str(value.ty.dtype)


_GUARDS: dict[str, Callable[[_Emitter, relax.Call], relax.Expr]] = {
    "relax.take": lambda make, call: safe_take(call, make.lookup),
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
}
