"""Round weights to 8 bits so that the rounding errors of one output channel cancel on real inputs.

Rounding to nearest treats every weight alone. The inputs of a layer are correlated, so an error of
one weight can be undone by the weights after it: each column of weights is rounded, and its error
is spread over the columns that are not rounded yet, as the covariance of the inputs says.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023, without the constant 1 in the covariance: the bias takes up the mean.
"""

from __future__ import annotations

import base64
import dataclasses
import zlib
from typing import Any

import numpy as np
import onnx

from tvmopt.kernels.exact_pairs import LARGEST_PAIR_SUM
from tvmopt.quantize.graph import attributes

_DAMPING = 0.01  # share of the mean variance that is added to every variance
_BLOCK = 32  # columns whose errors are spread over later blocks at once
_LARGEST = 127


@dataclasses.dataclass(frozen=True)
class Rounding:
    """Difference of a layer's integer weights from rounding to nearest.

    Attributes:
        shape: Shape of the layer's weight.
        packed: Differences, int8 in the order of the weight, compressed and in base64.
    """

    shape: tuple[int, ...]
    packed: str

    @classmethod
    def of(cls, codes: np.ndarray, nearest: np.ndarray) -> Rounding:
        """Return the difference of integer weights from weights rounded to nearest."""
        steps = np.clip(codes.astype(np.int16) - nearest, -_LARGEST, _LARGEST).astype(np.int8)
        packed = base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode("ascii")
        return cls(codes.shape, packed)

    def codes(self, nearest: np.ndarray) -> np.ndarray:
        """Return the integer weights, int8, for weights rounded to nearest."""
        steps = np.frombuffer(zlib.decompress(base64.b64decode(self.packed)), np.int8)
        found = nearest.astype(np.int16) + steps.reshape(self.shape)
        return np.clip(found, -_LARGEST, _LARGEST).astype(np.int8)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :meth:`from_dict`."""
        return {"shape": list(self.shape), "packed": self.packed}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Rounding:
        """Rebuild a rounding from :meth:`to_dict`."""
        return cls(tuple(data["shape"]), data["packed"])


def rounded(
    steps: np.ndarray, patches: np.ndarray, partners: np.ndarray | None = None
) -> np.ndarray:
    """Round weights so that the layer's result changes least.

    Args:
        steps: Weights in units of their scales, (groups, output channels, inputs).
        patches: Inputs of the layer, (groups, positions, inputs).
        partners: Input whose product is added in int16, for each input, see
            :func:`~tvmopt.quantize.exact_pairs.partners`; None: products are added in int32.

    Returns:
        Integers of the shape of ``steps``, from -127 to 127.
    """
    centred = patches - patches.mean(axis=1, keepdims=True)
    covariance = np.matmul(centred.transpose(0, 2, 1), centred).astype(np.float64)
    groups, _, inputs = steps.shape
    diagonal = np.einsum("gii->gi", covariance)
    dead = diagonal.mean(axis=1, keepdims=True) <= 0
    diagonal += np.where(dead, 1.0, _DAMPING * diagonal.mean(axis=1, keepdims=True))
    # Inputs with the largest variance first: their errors have the most columns to go to.
    order = np.argsort(-diagonal, axis=1, kind="stable")
    rows = np.arange(groups)[:, None]
    sorted_covariance = covariance[rows[:, :, None], order[:, :, None], order[:, None, :]]
    inverse = np.linalg.inv(sorted_covariance)
    # The upper factor of the inverse holds, row by row, how a column's error spreads.
    upper = np.linalg.cholesky(inverse).transpose(0, 2, 1)
    upper = upper.astype(np.float32)
    taken = np.take_along_axis(steps, order[:, None, :], axis=2)
    left = np.ascontiguousarray(taken.transpose(0, 2, 1), np.float32)  # (groups, inputs, outputs)
    found = np.empty_like(left)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        block = left[:, start:end].copy()
        errors = np.empty_like(block)
        for at in range(end - start):
            column, spread = block[:, at], upper[:, start + at, start + at : end]
            nearest = np.clip(np.rint(column), -_LARGEST, _LARGEST)
            if partners is not None:
                other = _codes_of_partners(found, order, partners, start + at)
                limit = LARGEST_PAIR_SUM - np.abs(other)
                nearest = np.where(nearest * other > 0, np.clip(nearest, -limit, limit), nearest)
            error = (column - nearest) / spread[:, :1]
            found[:, start + at], errors[:, at] = nearest, error
            block[:, at + 1 :] -= spread[:, 1:, None] * error[:, None]
        if end < inputs:
            left[:, end:] -= np.matmul(upper[:, start:end, end:].transpose(0, 2, 1), errors)
    codes = np.empty_like(steps)
    np.put_along_axis(codes, order[:, None, :], found.transpose(0, 2, 1), axis=2)
    return codes.astype(np.int8)


def _codes_of_partners(
    found: np.ndarray, order: np.ndarray, partners: np.ndarray, column: int
) -> np.ndarray:
    """Return the integers that are added to a column's in int16; 0 where they are not known yet.

    Args:
        found: Integers of the columns before ``column``, in the order of rounding,
            (groups, inputs, outputs).
        order: Input of each column, (groups, inputs).
        partners: As in :func:`rounded`.
        column: The column, in the order of rounding.

    Returns:
        (groups, outputs).
    """
    other = np.zeros(found[:, 0].shape, found.dtype)
    for group, inputs in enumerate(order):
        [place] = np.nonzero(inputs[:column] == partners[inputs[column]])
        if len(place):
            other[group] = found[group, place[0]]
    return other


def patches_of(
    node: onnx.NodeProto,
    x: np.ndarray,
    weight: tuple[int, ...],
    most: int,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Return inputs of a layer's dot products at random positions.

    Args:
        node: A convolution, Gemm or matmul with constant weights.
        x: Its input.
        weight: Shape of its weight.
        most: Most positions.
        rng: Draws the positions.

    Returns:
        Shape (groups, positions, inputs); None where the layer is none of these.
    """
    if node.op_type in ("Gemm", "MatMul"):
        rows = x.reshape(-1, x.shape[-1])
        return rows[rng.permutation(len(rows))[:most]][None]
    if node.op_type != "Conv" or x.ndim != 4:
        return None
    attrs = attributes(node)
    if attrs.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    groups = attrs.get("group", 1)
    kernel = weight[2:]
    strides = attrs.get("strides", [1, 1])
    dilations = attrs.get("dilations", [1, 1])
    pads = attrs.get("pads", [0] * 4)
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    sizes = [
        (padded.shape[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(2)
    ]
    total = len(x) * sizes[0] * sizes[1]
    at = rng.choice(total, most, replace=False) if total > most else np.arange(total)
    sample, *corner = np.unravel_index(at, (len(x), *sizes))
    rows, columns = (start * stride for start, stride in zip(corner, strides, strict=True))
    taken = [
        padded[sample, :, rows + i * dilations[0], columns + j * dilations[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    by_channel = np.stack(taken, axis=-1)  # (positions, channels, kernel)
    return by_channel.reshape(len(at), groups, -1).transpose(1, 0, 2)
