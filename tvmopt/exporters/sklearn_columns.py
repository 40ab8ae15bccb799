"""Converters for skl2onnx of SimpleImputer and FunctionTransformer.

skl2onnx has no imputer for float64, none with indicators, and no function but the identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.errors import ModelError
from tvmopt.exporters.sklearn_nodes import Nodes, fractions_of

#: Functions of NumPy as operators of ONNX; a number is the operand of the one before.
FUNCTIONS: dict[Any, tuple[tuple[str, float | None], ...]] = {
    np.exp: (("Exp", None),),
    np.expm1: (("Exp", None), ("Sub", 1.0)),
    np.log: (("Log", None),),
    np.log1p: (("Add", 1.0), ("Log", None)),
    np.log2: (("Log", None), ("Div", float(np.log(2)))),
    np.log10: (("Log", None), ("Div", float(np.log(10)))),
    np.sqrt: (("Sqrt", None),),
    np.abs: (("Abs", None),),
    np.negative: (("Neg", None),),
    np.sin: (("Sin", None),),
    np.cos: (("Cos", None),),
    np.tanh: (("Tanh", None),),
    np.square: (("Pow", 2.0),),
    np.reciprocal: (("Reciprocal", None),),
}


def register_columns() -> None:
    """Make skl2onnx use the converters of this file."""
    from skl2onnx import update_registered_converter
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import FunctionTransformer

    for kind, shape, convert in (
        (SimpleImputer, _shape_of_filled, _convert_imputer),
        (FunctionTransformer, _shape_of_function, _convert_function),
    ):
        update_registered_converter(kind, f"Tvmopt{kind.__name__}", shape, convert, overwrite=True)


def _shape_of_filled(operator: Any) -> None:
    from skl2onnx.common.data_types import StringTensorType

    model, rows = operator.raw_operator, operator.inputs[0].get_first_dimension()
    if isinstance(operator.inputs[0].type, StringTensorType):
        operator.outputs[0].type = StringTensorType([rows, len(model.statistics_)])
        return
    width = len(_kept(model)) + len(_indicated(model))
    operator.outputs[0].type = fractions_of(operator)([rows, width])


def _kept(model: Any) -> np.ndarray:
    """Return the columns that are kept: those that have a value."""
    gone = [isinstance(value, float) and np.isnan(value) for value in model.statistics_.tolist()]
    return np.flatnonzero(~np.array(gone, bool))


def _indicated(model: Any) -> np.ndarray:
    """Return the columns that get an indicator."""
    indicator = getattr(model, "indicator_", None)
    return np.asarray(indicator.features_ if indicator is not None else [], np.int64)


def _convert_imputer(scope: Any, operator: Any, container: Any) -> None:
    """Put the statistic of a column in the place of its missing values; append indicators."""
    from skl2onnx.common.data_types import DoubleTensorType, StringTensorType
    from skl2onnx.operator_converters.imputer_op import convert_sklearn_imputer

    model = operator.raw_operator
    indicated = _indicated(model)
    if isinstance(operator.inputs[0].type, StringTensorType):
        if len(indicated):
            raise ModelError(
                "an imputer of texts must have no indicators to be exported; leave out "
                "add_indicator, or impute them apart"
            )
        convert_sklearn_imputer(scope, operator, container)
        return
    dtype = np.dtype(np.float64 if fractions_of(operator) is DoubleTensorType else np.float32)
    nodes = Nodes(scope, container)
    source = nodes.joined(operator, dtype)
    missing = model.missing_values
    if isinstance(missing, float) and np.isnan(missing):
        gone = nodes.add("IsNaN", [source])
    else:
        gone = nodes.add("Equal", [source, nodes.constant(dtype.type(missing))])
    values = np.nan_to_num(np.asarray(model.statistics_, np.float64)).astype(dtype)[None]
    filled = nodes.add("Where", [gone, nodes.constant(values), source])
    kept = _kept(model)
    if len(kept) < len(model.statistics_):
        filled = nodes.add("Gather", [filled, nodes.constant(kept.astype(np.int64))], axis=1)
    if len(indicated):
        marks = nodes.add("Gather", [gone, nodes.constant(indicated)], axis=1)
        filled = nodes.add("Concat", [filled, nodes.cast(marks, dtype)], axis=1)
    nodes.add("Identity", [filled], operator.outputs[0].full_name)


def _shape_of_function(operator: Any) -> None:
    rows = operator.inputs[0].get_first_dimension()
    widths = [one.type.shape[1] for one in operator.inputs]
    width = None if None in widths else sum(widths)
    if operator.raw_operator.func is None and len(operator.inputs) == 1:
        operator.outputs[0].type = type(operator.inputs[0].type)([rows, width])
        return
    operator.outputs[0].type = fractions_of(operator)([rows, width])


def _convert_function(scope: Any, operator: Any, container: Any) -> None:
    """Apply a function of NumPy."""
    from skl2onnx.common.data_types import DoubleTensorType

    model = operator.raw_operator
    nodes = Nodes(scope, container)
    if model.func is None and len(operator.inputs) == 1:
        nodes.add("Identity", [operator.inputs[0].full_name], operator.outputs[0].full_name)
        return
    dtype = np.dtype(np.float64 if fractions_of(operator) is DoubleTensorType else np.float32)
    value = nodes.joined(operator, dtype)
    if model.func is not None:
        value = add_function(nodes, model.func, value, dtype, "the function of FunctionTransformer")
    nodes.add("Identity", [value], operator.outputs[0].full_name)


def add_function(nodes: Nodes, function: Any, value: str, dtype: np.dtype[Any], what: str) -> str:
    """Add a function of NumPy to ``value``; return its output.

    Raises:
        ModelError: When the function is none of :data:`FUNCTIONS`.
    """
    try:
        known = FUNCTIONS.get(function)
    except TypeError:  # cannot be hashed
        known = None
    if known is None:
        names = ", ".join(sorted(f"np.{one.__name__}" for one in FUNCTIONS))
        raise ModelError(
            f"{what} must be one of {names} to be exported, but is "
            f"{getattr(function, '__name__', type(function).__name__)}; apply it to the columns "
            "before the model"
        )
    for kind, number in known:
        more = [] if number is None else [nodes.constant(dtype.type(number))]
        value = nodes.add(kind, [value, *more])
    return value
