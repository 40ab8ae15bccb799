"""Abstract values of quantized lowering: how integers represent a float variable.

A float variable of a quantized model is rarely needed in floating point. It is represented by
- :class:`Linear`: ``clamp(sum of scale * (tensor + shift) + offset)`` over integer tensors;
- :class:`Constant`: a dequantized constant with known integers;
- :class:`Concatenated`: a concatenation deferred until its quantization parameters are known;
- a tuple of values (the result of a split);
- a Relax expression of the output module.

A value emits no operators until a user requests it in floats or quantized.
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
        scale: float32, of shape () or of the tensor's rank and broadcastable to it.
        shift: int32, shaped like ``scale``: minus the zero point. For an accumulator, the bias plus
            the correction for the operands' zero points.
    """

    tensor: relax.Expr
    scale: np.ndarray
    shift: np.ndarray

    @property
    def dtype(self) -> str:
        """The dtype of the integer tensor."""
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
        """Whether the value has bounds; then it is not linear in its tensors."""
        return self.low > -math.inf or self.high < math.inf

    @property
    def accumulates(self) -> bool:
        """Whether a term is an int32 accumulator, which should not be stored."""
        return any(term.dtype == "int32" for term in self.terms)


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """``scale * (data - zero)`` in NumPy; ``scale`` and ``zero`` broadcast to ``data``."""

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
    """Concatenation of values along ``axis``."""

    parts: tuple[Value, ...]
    axis: int


Value: TypeAlias = "relax.Expr | Linear | Constant | Concatenated | tuple[Value, ...]"


@dataclasses.dataclass(frozen=True, eq=False)
class QuantParams:
    """Quantization parameters: ``clip(round(x / scale) + zero)``.

    Attributes:
        scale: float32, of shape () or of the tensor's rank with one entry per channel.
        zero: int32 zero point, shaped like ``scale``.
        dtype: dtype of the quantized tensor.
    """

    scale: np.ndarray
    zero: np.ndarray
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest quantized value."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def per_tensor(self) -> bool:
        """Whether scale and zero point are per tensor."""
        return self.scale.ndim == 0 and self.zero.ndim == 0

    def apply(self, real: np.ndarray) -> np.ndarray:
        """Quantize floats as ONNX Runtime does: divide, round to even, add zero point, saturate."""
        steps = np.rint(real.astype(np.float32) / self.scale) + self.zero.astype(np.float32)
        return np.clip(steps, *self.limits).astype(self.dtype)


def array_of(expr: object) -> np.ndarray | None:
    """Return the data of a constant; None for other expressions and for dtypes NumPy lacks."""
    if not isinstance(expr, GenericConst) or not isinstance(expr.value, tvm.runtime.Tensor):
        return None
    dtype = str(expr.value.dtype)
    if dtype not in _NUMPY_TYPES:
        return None
    data: np.ndarray = expr.value.numpy()
    return data


def static_shape(expr: relax.Expr) -> Shape | None:
    """Return the shape of a tensor; None when it is not a tensor or not static."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape):
        return None
    return tuple(int(d) for d in shape)


def along_axis(array: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """Return per-channel values with rank ``ndim``; a single value as a scalar."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * ndim
    shape[axis] = array.size
    return array.reshape(shape)


def with_rank(array: np.ndarray, ndim: int) -> np.ndarray:
    """Prepend axes of extent 1 up to rank ``ndim``; return a single value as a scalar."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


def varies_only_along(array: np.ndarray, axis: int) -> bool:
    """Return whether ``array`` is a scalar or varies only along ``axis``."""
    if array.size == 1:
        return True
    axis %= array.ndim
    return all(dim == 1 for i, dim in enumerate(array.shape) if i != axis)


_NUMPY_TYPES = {
    "int8", "uint8", "int16", "uint16", "int32", "int64", "bool", "float32", "float64",
}  # fmt: skip
