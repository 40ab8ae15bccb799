"""Random functions for the contract tests in :mod:`tests.kernels.cpu.test_templates`.

Each function has a float64 NumPy reference. Shapes are small, prime or ragged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tvm import relax

op, nn = relax.op, relax.op.nn
Draw = Callable[[st.SearchStrategy[Any]], Any]

#: Channels: one, few, ragged and whole for 8 and 16 lanes, one larger than a register tile.
CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 40, 67])
SIZES = st.integers(1, 13)


@dataclasses.dataclass(frozen=True)
class Operand:
    """An argument; a ``constant`` one is a weight, known at build time."""

    shape: tuple[int, ...]
    constant: bool = False
    dtype: str = "float32"


@dataclasses.dataclass(frozen=True, repr=False)
class Drawn:
    """A few operators, and their NumPy reference.

    Attributes:
        text: Description, for the report of a failure.
        operands: The arguments.
        build: Builds the result from Relax variables.
        numpy: Computes the result from float64 arrays; None if only TVM's lowering is a reference.
        coarse: Whether inputs are rounded to integers, so that equal values occur.
    """

    text: str
    operands: tuple[Operand, ...]
    build: Callable[..., relax.Expr]
    numpy: Callable[..., np.ndarray] | None
    coarse: bool = False

    def __repr__(self) -> str:
        shapes = ", ".join("x".join(map(str, o.shape)) for o in self.operands)
        return f"<{self.text} of {shapes}>"


def _sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def _hard_swish(y: Any) -> Any:
    return op.multiply(y, op.divide(op.clip(op.add(y, relax.const(3.0)), 0, 6), relax.const(6.0)))


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "none": (lambda y: y, lambda y: y),
    "relu": (nn.relu, lambda y: np.maximum(y, 0)),
    "clip": (lambda y: op.clip(y, -0.5, 1.5), lambda y: np.clip(y, -0.5, 1.5)),
    "sigmoid": (op.sigmoid, _sigmoid),
    "hard_swish": (_hard_swish, lambda y: y * np.clip(y + 3, 0, 6) / 6),
    "float16": (lambda y: op.astype(y, "float16"), lambda y: y),
}
EPILOGUES = [
    "none", "bias", "bias_relu", "bias_residual_relu", "clip", "sigmoid", "bias_hard_swish",
    "float16", "bias_float16",
]  # fmt: skip


def with_epilogue(
    name: str,
    text: str,
    operands: Sequence[Operand],
    build: Callable[..., Any],
    numpy: Callable[..., np.ndarray] | None,
    out: tuple[int, ...],
    bias: tuple[int, ...],
) -> Drawn:
    """Return ``build`` with the epilogue ``name``.

    Args:
        name: One of ``EPILOGUES``.
        text: Description of ``build``.
        operands: Operands of ``build``.
        build: Builds the tensor before the epilogue.
        numpy: Computes the same tensor in NumPy.
        out: Shape of the tensor.
        bias: Shape of a bias.
    """
    extra: list[Operand] = []
    if "bias" in name:
        extra.append(Operand(bias, constant=True))
    if "residual" in name:
        extra.append(Operand(out))
    after, after_numpy = next((f for k, f in UNARY.items() if name.endswith(k)), UNARY["none"])
    count = len(operands)

    def whole(*args: Any) -> Any:
        y = build(*args[:count])
        for other in args[count:]:
            y = op.add(y, other)
        return after(y)

    def whole_numpy(*args: np.ndarray) -> np.ndarray:
        assert numpy is not None
        y = numpy(*args[:count])
        for other in args[count:]:
            y = y + other
        return after_numpy(y)

    return Drawn(
        f"{text}, epilogue {name}",
        (*operands, *extra),
        whole,
        None if numpy is None else whole_numpy,
    )


def with_integer_epilogue(
    name: str,
    text: str,
    operands: Sequence[Operand],
    build: Callable[..., Any],
    numpy: Callable[..., np.ndarray] | None,
    out: tuple[int, ...],
    bias: tuple[int, ...],
) -> Drawn:
    """Return an int32 accumulator with the epilogue ``name`` of ``INTEGER_EPILOGUES``, bit-exact.

    NumPy computes floats in float32, as the kernel does.
    """
    assert numpy is not None
    extra: list[Operand] = []
    if name != "none":
        extra.append(Operand(bias, constant=True, dtype="int32"))
    if "residual" in name:
        extra.append(Operand(out, dtype="uint8"))
    count = len(operands)
    dtype = next((d for d in ("uint8", "int8", "float32") if name.endswith(d)), "int32")
    low, high, zero = (0, 255, 3) if dtype == "uint8" else (-128, 127, -5)
    scale, other = np.float32(0.0173), np.float32(0.31)

    def whole(*args: Any) -> Any:
        y = build(*args[:count])
        if name == "none":
            return y
        y = op.add(y, args[count])
        if dtype == "int32":
            return nn.relu(y)
        y = op.multiply(op.astype(y, "float32"), relax.const(scale))
        for residual in args[count + 1 :]:
            y = op.add(y, op.multiply(op.astype(residual, "float32"), relax.const(other)))
        if dtype == "float32":
            return y
        y = op.add(op.round(y), relax.const(np.float32(zero)))
        return op.astype(op.clip(y, low, high), dtype)

    def whole_numpy(*args: np.ndarray) -> np.ndarray:
        y = numpy(*args[:count])
        if name == "none":
            return y
        y = y + args[count]
        if dtype == "int32":
            return np.maximum(y, 0)
        y = y.astype("float32") * scale
        for residual in args[count + 1 :]:
            y = y + residual.astype("float32") * other
        return y if dtype == "float32" else np.clip(np.rint(y) + np.float32(zero), low, high)

    return Drawn(f"{text}, epilogue {name}", (*operands, *extra), whole, whole_numpy)


INTEGER_EPILOGUES = (
    "none", "bias", "bias_uint8", "bias_int8", "bias_residual_uint8", "bias_float32",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Types:
    """Dtypes of a matmul or convolution, and its possible epilogues.

    Attributes:
        data: Dtype of the data.
        weight: Dtype of the weight.
        sums: Dtype of the accumulator; None for the dtype of the operands.
        epilogues: Names of the possible epilogues.
        with_epilogue: Appends one of them.
    """

    data: str = "float32"
    weight: str = "float32"
    sums: str | None = None
    epilogues: Sequence[str] = tuple(EPILOGUES)
    with_epilogue: Callable[..., Drawn] = with_epilogue


FLOAT = Types()
BYTES = Types("uint8", "int8", "int32", INTEGER_EPILOGUES, with_integer_epilogue)
BFLOAT16 = Types("bfloat16", "bfloat16", "float32")
