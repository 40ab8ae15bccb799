"""Refuse results whose shape is a value of a call.

TVM's importer compiles Tile, Expand, Unsqueeze or HannWindow with sizes that are inputs: the values
become a shape (``tensor_to_shape``), whose product may overflow, so that a kernel writes beyond the
memory that it was given. ONNX Runtime checks them, so such nodes run there. What a kernel of ours
has counted (the boxes that NonMaxSuppression keeps) is bounded, and stays.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.errors import UnsupportedOperatorError
from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.transform.called_name import called_name
from tvmopt.transform.precision.anchor_call import constant_data

_TO_SHAPE = "tensor_to_shape"  # end of the operator's name, and of the packed function's


def require_counted_shapes(mod: tvm.IRModule) -> None:
    """Raise where a value of a call becomes a shape.

    Raises:
        UnsupportedOperatorError: With the number of such places.
    """
    found = sum(
        _from_values(func) for _, func in mod.functions_items() if isinstance(func, relax.Function)
    )
    if found:
        raise UnsupportedOperatorError(
            "the shape of a result must not be a value of a call, but "
            f"{found} {'is' if found == 1 else 'are'}; make sizes, axes and repeats constants of "
            "the model, or let ONNX Runtime run these nodes with fallback=onnxruntime"
        )


def _from_values(func: relax.Function) -> int:
    """Return how many values become shapes that no kernel has counted."""
    bound: dict[relax.Var, relax.Expr] = {}
    values: list[relax.Expr] = []
    for block in func.body.blocks:
        for binding in block.bindings:
            bound[binding.var] = value = binding.value
            if isinstance(value, relax.Call) and called_name(value).endswith(_TO_SHAPE):
                values.append(value.args[-1])
    return sum(not _is_counted(value, bound) for value in values)


def _is_counted(value: relax.Expr, bound: dict[relax.Var, relax.Expr]) -> bool:
    """Return whether ``value`` is a result of a kernel, or a constant."""
    while isinstance(value, relax.Var) and value in bound:
        value = bound[value]
    if isinstance(value, relax.TupleGetItem):
        return _is_counted(value.tuple_value, bound)
    if isinstance(value, relax.Call):
        return is_call_tir(value)
    return constant_data(value) is not None
