"""The value domain of integer lowering: what a float variable stands for, in integers.

A float variable of a quantised model is rarely needed as floats. It is kept as one of

- :class:`Linear`: ``clamp(sum of scale * (tensor + shift) + offset)`` over integer tensors;
- :class:`Constant`: a dequantised constant, its integers known;
- :class:`Concatenated`: a concatenation that waits for the parameters it is quantised with;
- a tuple of values (the result of a split);
- a Relax expression: what it is in the output module.

Nothing is emitted for a value until somebody asks for it in floats or quantised.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

Shape: TypeAlias = tuple[int, ...]

ZERO = np.zeros((), np.float32)
"""The offset of a value that has none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """``scale * (tensor + shift)``.

    Attributes:
        tensor: An 8-bit or 16-bit tensor, or an int32 accumulator.
        scale: float32, () or of the tensor's rank and broadcastable to it.
        shift: int32, like ``scale``: minus the zero point; for an accumulator the bias and what
            the zero points of the operands add to it.
    """

    tensor: relax.Expr
    scale: np.ndarray
    shift: np.ndarray

    @property
    def dtype(self) -> str:
        """Element type of the integer tensor."""
        return str(self.tensor.ty.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """``clip(sum(terms) + offset, low, high)``, of shape ``shape``."""

    terms: tuple[Term, ...]
    shape: Shape
    offset: np.ndarray = dataclasses.field(default_factory=lambda: ZERO)
    low: float = -math.inf
    high: float = math.inf

    @property
    def clamped(self) -> bool:
        """Whether values are cut off: then the value is no longer linear in its tensors."""
        return self.low > -math.inf or self.high < math.inf

    @property
    def accumulates(self) -> bool:
        """Whether a term is an int32 accumulator, which nobody should store."""
        return any(term.dtype == "int32" for term in self.terms)


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """``scale * (data - zero)``, all NumPy; ``scale`` and ``zero`` broadcast to ``data``."""

    data: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @property
    def real(self) -> np.ndarray:
        """The float32 values, computed as ONNX Runtime does."""
        centred = self.data.astype(np.int32) - self.zero
        return (centred.astype(np.float32) * self.scale).astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Concatenated:
    """Values side by side along ``axis``."""

    parts: tuple[Value, ...]
    axis: int


Value: TypeAlias = "relax.Expr | Linear | Constant | Concatenated | tuple[Value, ...]"


@dataclasses.dataclass(frozen=True, eq=False)
class QuantParams:
    """How a tensor is quantised: ``clip(round(x / scale) + zero)``.

    Attributes:
        scale: float32, () or of the tensor's rank, one entry a channel.
        zero: int32, like ``scale``.
        dtype: Element type of the quantised tensor.
    """

    scale: np.ndarray
    zero: np.ndarray
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest quantised value."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def per_tensor(self) -> bool:
        """Whether one scale and zero point serve the whole tensor."""
        return self.scale.ndim == 0 and self.zero.ndim == 0

    def apply(self, real: np.ndarray) -> np.ndarray:
        """Quantise floats as ONNX Runtime does: divide, round to even, shift, saturate."""
        steps = np.rint(real.astype(np.float32) / self.scale) + self.zero.astype(np.float32)
        return np.clip(steps, *self.limits).astype(self.dtype)


def array_of(expr: object) -> np.ndarray | None:
    """The data of a constant expression; None for anything else, and for types NumPy has not."""
    if not isinstance(expr, GenericConst) or not isinstance(expr.value, tvm.runtime.Tensor):
        return None
    dtype = str(expr.value.dtype)
    if dtype not in _NUMPY_TYPES:
        return None
    data: np.ndarray = expr.value.numpy()
    return data


def static_shape(expr: relax.Expr) -> Shape | None:
    """Dimensions of a tensor; None when it is no tensor or a dimension is not known."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape):
        return None
    return tuple(int(d) for d in shape)


def along_axis(array: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """One value a channel as an array of rank ``ndim``; a single value as a scalar."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * ndim
    shape[axis] = array.size
    return array.reshape(shape)


def with_rank(array: np.ndarray, ndim: int) -> np.ndarray:
    """Leading ones added, which broadcasting would assume anyway; a single value is a scalar."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


def varies_only_along(array: np.ndarray, axis: int) -> bool:
    """Whether ``array`` is a scalar or has one value for each index of ``axis``."""
    if array.size == 1:
        return True
    axis %= array.ndim
    return all(dim == 1 for i, dim in enumerate(array.shape) if i != axis)


_NUMPY_TYPES = {
    "int8", "uint8", "int16", "uint16", "int32", "int64", "bool", "float32", "float64",
}  # fmt: skip
