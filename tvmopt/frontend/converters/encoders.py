"""Converters of OneHotEncoder and LabelEncoder of ai.onnx.ml; categories are numbers here.

:mod:`tvmopt.frontend.categories` has replaced strings by codes before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    dtype_of,
    ml_opset,
    static_shape,
    typed_constant,
)

# Entries of a table of consecutive integer keys, for each key.
_MOST_SPARSE = 8
_NAN_IS_A_KEY = 4  # version of ai.onnx.ml from which on a NaN equals the key NaN


def one_hot_encoder(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return 1 at the place of the category on a new last axis, float32; else 0.

    Floats are cut to integers, as in ONNX Runtime; NaN and infinities are no category.

    Raises:
        ValueError: When a category that is not listed must fail, which compiled code cannot.
    """
    x = inputs[0]
    if attributes.get("cats_strings"):
        raise ValueError("categories must be integers, but are strings")
    if not int(attributes.get("zeros", 1)):
        raise ValueError("zeros=0 refuses unknown categories at run time")
    categories = np.array(attributes["cats_int64s"], "int64")
    is_float = dtype_of(x).startswith("float")
    if is_float:
        x = builder.emit(relax.op.trunc(x))
    listed = categories.astype(dtype_of(x))
    wide = builder.emit(relax.op.expand_dims(x, [-1]))
    same = relax.op.equal(wide, typed_constant(listed))
    # Of equal categories, the last one counts; a number that the dtype has not is never met.
    last = {int(category): place for place, category in enumerate(categories)}
    usable = [
        last[int(category)] == place and int(value) == int(category)
        for place, (category, value) in enumerate(zip(categories, listed, strict=True))
    ]
    if not all(usable):
        same = relax.op.logical_and(builder.emit(same), typed_constant(usable, "bool"))
    return builder.normalize(relax.op.astype(builder.emit(same), "float32"))


def label_encoder(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the value of each key, or the default; of equal keys, the first counts."""
    x = inputs[0]
    keys, values, default = _mapping(attributes)
    if keys.dtype.kind == "f" and ml_opset(attributes) < _NAN_IS_A_KEY:
        kept = ~np.isnan(keys)
        keys, values = keys[kept], values[kept]
    table = typed_constant(np.concatenate([values, default]))
    place = _table_place(builder, x, keys) if _is_dense(keys) else _key_place(builder, x, keys)
    if _is_dense(keys):
        table = typed_constant(_dense_table(keys, values, default))
    return builder.normalize(relax.op.take(table, place, 0, "clip"))


def _mapping(attributes: Attributes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, values and the default, an array of one value."""
    sides = []
    for side in ("keys", "values"):
        found = [
            (kind, attributes[f"{side}_{kind}"])
            for kind in ("int64s", "floats", "tensor")
            if attributes.get(f"{side}_{kind}") is not None
        ]
        if not found:
            raise ValueError(f"{side} must be numbers, but are strings")
        kind, given = found[0]
        sides.append(_array(given) if kind == "tensor" else np.array(given, _DTYPES[kind]))
    keys, values = (side.reshape(-1) for side in sides)
    if len(keys) != len(values):
        raise ValueError(f"there must be as many keys as values, but {len(keys)} and {len(values)}")
    if attributes.get("default_tensor") is not None:
        default = _array(attributes["default_tensor"]).reshape(-1)[:1]
    elif values.dtype.kind == "i":
        default = np.array([attributes.get("default_int64", -1)])
    else:
        default = np.array([attributes.get("default_float", -0.0)])
    return keys, values, default.astype(values.dtype)


_DTYPES = {"int64s": "int64", "floats": "float32"}


def _array(given: Any) -> np.ndarray:
    return numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.array(given)


def _is_dense(keys: np.ndarray) -> bool:
    """Return whether the keys are integers that lie close enough for a table of all between."""
    if keys.dtype.kind != "i" or not keys.size:
        return False
    return int(keys.max()) - int(keys.min()) < _MOST_SPARSE * len(keys) + 64


def _dense_table(keys: np.ndarray, values: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Return the value of each integer from the least key to the largest, between two defaults."""
    start = int(keys.min())
    table = np.repeat(default, int(keys.max()) - start + 3)
    table[keys[::-1] - start + 1] = values[::-1]  # the first of equal keys is written last
    return table


def _table_place(builder: relax.BlockBuilder, x: relax.Expr, keys: np.ndarray) -> relax.Expr:
    low, high = int(keys.min()) - 1, int(keys.max()) + 1
    low_, high_ = relax.const(low, dtype_of(x)), relax.const(high, dtype_of(x))
    inside = builder.emit(relax.op.minimum(relax.op.maximum(x, low_), high_))
    return builder.emit(relax.op.subtract(inside, low_))


def _key_place(builder: relax.BlockBuilder, x: relax.Expr, keys: np.ndarray) -> relax.Expr:
    """Return the place of the first key that equals each value, int64; their number without one."""
    count, rank = len(keys), len(static_shape(x))
    none = typed_constant(count, "int64")
    if not count:
        return builder.emit(relax.op.full_like(relax.op.astype(x, "int64"), none))
    wide = builder.emit(relax.op.expand_dims(x, [-1]))
    same = builder.emit(relax.op.equal(wide, typed_constant(keys)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = relax.op.logical_and(relax.op.isnan(wide), typed_constant(np.isnan(keys)))
        same = builder.emit(relax.op.logical_or(same, builder.emit(nan)))
    places = typed_constant(np.arange(count), "int64")
    found = builder.emit(relax.op.where(same, places, none))
    return builder.emit(relax.op.min(found, [rank]))
