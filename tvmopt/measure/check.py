"""Create random inputs, run the reference, and compare a candidate's output with it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import tvm

from tvmopt.compare import same_non_finite
from tvmopt.device import dtypes
from tvmopt.errors import TvmoptError

_TIES = 1e-3  # part of the 8-bit results that may be rounded to the other side


class WrongResultError(TvmoptError):
    """A candidate's output differs from the reference."""


def pack(
    packer: Any,
    tensors: list[Any],
    packed: list[int],
    outputs: list[tuple[list[int], str]],
    device: Any = None,
) -> None:
    """Replace the tensors at the indices ``packed`` by their packed versions.

    Args:
        packer: The packing function.
        tensors: Arguments of the compute function; modified in place.
        packed: Indices of the arguments to pack.
        outputs: Shape and dtype of the packed tensors.
        device: Device of the tensors; None for the local CPU.
    """
    made = [tvm.runtime.empty(tuple(shape), dtype, device) for shape, dtype in outputs]
    packer(*(tensors[i] for i in packed), *made)
    for i, tensor in zip(packed, made, strict=True):
        tensors[i] = tensor


def result_of(kernel: Any, arrays: list[np.ndarray], device: Any = None) -> np.ndarray:
    """Run ``kernel`` and return the last of ``arrays``, its output."""
    tensors = [tvm.runtime.tensor(array, device) for array in arrays]
    kernel(*tensors)
    return tensors[-1].numpy()


def run_reference(
    kernel: Any,
    arguments: list[tuple[tuple[int, ...], str]],
    seed: int,
    device: Any = None,
    small: Collection[int] = (),
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Create random inputs and run the reference ``kernel`` on them.

    Args:
        kernel: The reference.
        arguments: Shape and dtype of each argument.
        seed: Seed of the inputs.
        device: Device of the kernel; None for the local CPU.
        small: Indices of the arguments whose int8 numbers are within -64 and 63.

    Returns:
        The inputs, and the value of every argument after the run.
    """
    inputs: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    # Signed inputs exercise both sides of an activation. Their square root or logarithm is NaN,
    # which would match any other NaN, so fall back to positive inputs.
    for positive in (False, True):
        rng = np.random.default_rng(seed)
        inputs = [random_array(rng, shape, dtype, positive) for shape, dtype in arguments]
        for place in small:
            if inputs[place].dtype == np.int8:
                inputs[place] >>= 1
        tensors = [tvm.runtime.tensor(array, device) for array in inputs]
        kernel(*tensors)
        outputs = [tensor.numpy() for tensor in tensors]
        if all(_is_finite(array) for array in outputs):
            break
    return inputs, outputs


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, positive: bool
) -> np.ndarray:
    """Return a random array of ``shape`` whose values are safe for any operator.

    Wide integers are 0 or 1, because they may index another argument.
    """
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    row = dtypes.dtype(dtype)
    if dtype in dtypes.BYTE_INTEGERS:
        return rng.integers(row.lowest, row.highest + 1, shape).astype(row.numpy)
    if row.is_integer:
        return rng.integers(0, 2, shape).astype(row.numpy)
    values = rng.uniform(0.1, 1.0, shape) if positive else rng.standard_normal(shape)
    return values.astype(row.numpy)


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())


def compare(index: int, got: np.ndarray, wanted: np.ndarray) -> None:
    """Raise :class:`WrongResultError` unless ``got`` equals ``wanted`` within tolerance."""
    tolerance = dtypes.dtype(wanted.dtype.name).kernel_tolerance
    if not tolerance:
        wrong = int(np.count_nonzero(got != wanted))
        if wrong and not _is_rounded_otherwise(got, wanted, wrong):
            raise WrongResultError(f"wrong result: argument {index} differs at {wrong} elements")
        return
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max(initial=1e-6))
    error = float(np.abs(got[finite] - wanted[finite]).max(initial=0.0))
    same_specials = np.array_equal(got[~finite], wanted[~finite], equal_nan=True)
    # The negated comparison makes a NaN fail.
    if not (error <= tolerance * scale and same_specials):
        raise WrongResultError(
            f"wrong result: argument {index} is off by {error:.3g}, allowed {tolerance * scale:.3g}"
        )


def _is_rounded_otherwise(got: np.ndarray, wanted: np.ndarray, differing: int) -> bool:
    """Return whether 8-bit integers differ as roundings of float32 near a tie do.

    A function that requantizes computes in float32, where multiplication and addition may be one
    instruction, or two.
    """
    if wanted.dtype.name not in dtypes.BYTE_INTEGERS:
        return False
    most = np.abs(got.astype(np.int16) - wanted.astype(np.int16)).max()
    return most <= 1 and differing <= max(1, _TIES * wanted.size)


def check_places(got: np.ndarray, wanted: np.ndarray) -> None:
    """Raise :class:`WrongResultError` unless NaN and infinities are at the same positions.

    For narrow floats only NaN counts, because different rounding may overflow to infinity.
    """
    wide = wanted.dtype.name in dtypes.WIDE_FLOATS
    if not same_non_finite(got, wanted, infinities=wide):
        raise WrongResultError(
            "wrong result: NaN and infinities of planted inputs are not where the reference has "
            f"them: {_counts(got)} instead of {_counts(wanted)}"
        )


def _counts(array: np.ndarray) -> str:
    wide = array.astype(np.float64)
    return f"{np.isnan(wide).sum()} NaN and {np.isinf(wide).sum()} infinities"
