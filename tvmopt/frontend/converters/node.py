"""Helpers to read attributes, inputs and shapes of an ONNX node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tvm import relax, te, tirx

from tvmopt.kernels.scheduled import OPAQUE
from tvmopt.transform.precision.anchor_call import constant_data

Inputs = Sequence[relax.Expr | None]
Attributes = Mapping[str, Any]
Converter = Callable[[relax.BlockBuilder, Inputs, Attributes], "relax.Expr | None"]


def optional(inputs: Inputs, place: int) -> relax.Expr | None:
    """Return an input that may be left out."""
    return inputs[place] if place < len(inputs) else None


def outputs(attributes: Attributes) -> int:
    """Return the number of outputs of the node."""
    return int(attributes["tvm_custom"]["num_outputs"])


def opset(attributes: Attributes) -> int:
    """Return the opset of the model."""
    return int(attributes["tvm_custom"]["opset"])


def ml_opset(attributes: Attributes) -> int:
    """Return the version of ai.onnx.ml that the model asks for; 1 where it names none."""
    return int(attributes["tvm_custom"].get("ml_opset", 1))


def text(attributes: Attributes, name: str, default: str) -> str:
    """Return an attribute that is a text."""
    return decoded(attributes.get(name, default))


def decoded(value: str | bytes) -> str:
    """Return a text that may be given as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def static_shape(value: relax.Expr) -> list[int]:
    """Return the shape of a value.

    Raises:
        ValueError: When it is not static.
    """
    shape = value.ty.shape
    if shape is None or not all(
        isinstance(extent, int) or hasattr(extent, "value") for extent in shape
    ):
        raise ValueError("shapes must be static")
    return [int(extent) for extent in shape]


def dtype_of(value: relax.Expr) -> str:
    """Return the dtype of a value."""
    return str(value.ty.dtype)


def is_constant(value: relax.Expr) -> bool:
    """Return whether a value is constant."""
    return constant_data(value) is not None


def constant(value: relax.Expr | None, what: str) -> np.ndarray:
    """Return the array of an input that must be constant.

    Raises:
        ValueError: When it is not.
    """
    data = None if value is None else constant_data(value)
    if data is None:
        raise ValueError(f"{what} must be constant")
    return data.numpy()


def typed_constant(values: ArrayLike, dtype: str = "") -> relax.Constant:
    """Return a constant of the dtype of ``values``, or of another one.

    Without a dtype, Relax narrows 64 bits to 32.
    """
    array = np.asarray(values, dtype or None)
    return relax.const(array, str(array.dtype))


def axis_of(attributes: Attributes, rank: int, default: int = -1) -> int:
    """Return the attribute ``axis`` as a number from 0 on.

    Raises:
        ValueError: When there is no such axis.
    """
    axis = int(attributes.get("axis", default))
    if not -rank <= axis < rank:
        raise ValueError(f"axis must be in [{-rank}, {rank}), but got {axis}")
    return axis % rank


def first_rows(builder: relax.BlockBuilder, rows: relax.Expr, count: relax.Expr) -> relax.Expr:
    """Return the first rows of a matrix; their number is known at run time only.

    Args:
        builder: Block builder to emit into.
        rows: The matrix.
        count: Number of rows, int64 (1,).
    """
    columns = int(rows.ty.shape[1])
    number = tirx.Var("rows", "int64")
    builder.match_cast(builder.emit(relax.op.tensor_to_shape(count)), relax.ShapeType([number]))

    def some(data: te.Tensor, number: tirx.Var) -> te.Tensor:
        return te.compute((number, columns), lambda i, j: data[i, j], name="first_rows")

    # Opaque: fusion would move the call before the binding of its number of rows.
    attributes = {"op_pattern": OPAQUE}
    return builder.emit_te(some, rows, number, primfunc_attrs=attributes)
