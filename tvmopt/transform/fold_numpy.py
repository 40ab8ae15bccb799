"""Constant folding of common operators with NumPy.

before -> after: ``permute_dims(const)`` -> ``const'``, likewise reshapes, casts, and elementwise
operators on small constants (the bounds of a Clip, shape arithmetic, the index of a Gather, which
may count from the end). TVM's FoldConstant gives the same result, but compiles and loads a function
for each call: 8 seconds for the biases and Clips of a network with 60 convolutions, 19 for 181
Gathers. FoldConstant handles whatever this pass leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device import dtypes
from tvmopt.transform.rewrite import rewrite_functions

_SMALL = 4096


def _transpose(call: relax.Call, data: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(data, None if axes is None else [int(a) for a in axes])


def _taken(call: relax.Call, data: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    """Return the values at ``indices``; None where one is out of range."""
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    if not ((indices >= 0) & (indices < size)).all():
        return None
    return np.asarray(np.take(data, indices, axis))


_RESHAPES = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"}
_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "relax.isnan": np.isnan,
    "relax.where": np.where,
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.logical_and": np.logical_and,
    "relax.logical_or": np.logical_or,
    "relax.logical_not": np.logical_not,
    "relax.astype": lambda a: a,
}


@mutator
class _Fold(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op):
            return call
        shape, dtype = _static_type(op.ty)
        if shape is None or dtype not in _DTYPES:
            return call
        name = call.op.name
        if name == "relax.shape_to_tensor":
            sizes = getattr(call.args[0].ty, "values", None)
            if sizes is None or not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
                return call
            return relax.const(np.array([int(size) for size in sizes], np.int64), dtype)
        if name == "relax.take" and math.prod(shape) <= _SMALL:
            data, indices = map(self._data, call.args)
            taken = None if data is None or indices is None else _taken(call, data, indices)
            return call if taken is None else relax.const(taken.reshape(shape), dtype)
        if name in _RESHAPES or name == "relax.permute_dims":
            data = self._data(call.args[0])
            if data is None:
                return call
            out = data.reshape(shape) if name in _RESHAPES else _transpose(call, data)
            return relax.const(np.ascontiguousarray(out).reshape(shape), dtype)
        if name in _ELEMENTWISE and (math.prod(shape) <= _SMALL or name == "relax.astype"):
            values = [self._data(arg) for arg in call.args]
            if any(v is None or str(v.dtype) not in _DTYPES for v in values):
                return call
            with np.errstate(all="ignore"):
                out = _ELEMENTWISE[name](*values)
            low = np.asarray(out, dtype=dtypes.dtype(dtype).numpy)
            return relax.const(low.reshape(shape), dtype)
        return call

    def _data(self, expr: relax.Expr) -> np.ndarray | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        if isinstance(expr, GenericConst) and isinstance(expr.value, tvm.runtime.Tensor):
            return expr.value.numpy()
        return None


_DTYPES = {*dtypes.FLOATS, *dtypes.BYTE_INTEGERS, "int32", "int64", "bool"}


def _static_type(ty: relax.Type) -> tuple[tuple[int, ...] | None, str]:
    shape = getattr(ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape):
        return None, ""
    return tuple(int(d) for d in shape), str(ty.dtype)


@tvm.transform.module_pass(opt_level=0, name="FoldConstantNumpy")
class FoldConstantNumpy:
    """Fold the operators that NumPy evaluates quickly; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _Fold(mod))
