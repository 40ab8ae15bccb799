"""Weights whose pairs of products with uint8 data stay within int16, for CPUs without VNNI.

``vpmaddubsw`` saturates where the weights of one sign of two neighbours along K add up to more than
128. A larger scale of an output channel prevents that: by 1.3 on average for a convolution, where
7 bits for all weights (ONNX Runtime's ``reduce_range``, NNCF's overflow fix) take a factor of 2.
"""

from __future__ import annotations

import numpy as np
import onnx

from tvmopt.kernels.exact_pairs import LARGEST_PAIR_SUM, largest_pair_sums
from tvmopt.quantize.graph import attributes


def k_axis(node: onnx.NodeProto) -> int:
    """Return the axis of a layer's weight along which a dot product takes neighbours."""
    if node.op_type == "Gemm":
        return 1 if attributes(node).get("transB", 0) else 0
    return 1 if node.op_type == "Conv" else 0


def pair_factors(steps: np.ndarray, axis: int, along: int) -> np.ndarray:
    """Return the factors of the scales with which no pair of weights saturates.

    Args:
        steps: Weights in units of their scales.
        axis: Axis of the scales, not negative.
        along: Axis of K, not negative.

    Returns:
        (channels,), at least 1.
    """
    sums = largest_pair_sums(np.moveaxis(steps, along, -1))
    kept = axis - (along < axis)
    others = tuple(i for i in range(sums.ndim) if i != kept)
    factors: np.ndarray = np.maximum(1.0, sums.max(axis=others, initial=0) / LARGEST_PAIR_SUM)
    return factors


def within_pairs(codes: np.ndarray, along: int) -> np.ndarray:
    """Return integer weights with the larger weight of each pair that saturates made smaller.

    Rounding may lift the sum of a pair above the limit by one.

    Args:
        codes: int8.
        along: Axis of K.
    """
    last = np.moveaxis(codes.astype(np.int16), along, -1)
    even = last.shape[-1] // 2 * 2
    pairs = last[..., :even].reshape(*last.shape[:-1], even // 2, 2)
    same_sign = (pairs[..., 0] > 0) == (pairs[..., 1] > 0)
    excess = np.where(same_sign, np.abs(pairs).sum(axis=-1) - LARGEST_PAIR_SUM, 0)
    larger = np.abs(pairs).argmax(axis=-1)[..., None]
    value = np.take_along_axis(pairs, larger, axis=-1)
    smaller = value - np.sign(value) * np.maximum(excess, 0)[..., None]
    fitting = pairs.copy()
    np.put_along_axis(fitting, larger, smaller, axis=-1)
    out = last.copy()
    out[..., :even] = fitting.reshape(*last.shape[:-1], even)
    return np.ascontiguousarray(np.moveaxis(out, -1, along)).astype(np.int8)


def partners(node: onnx.NodeProto, shape: tuple[int, ...]) -> np.ndarray:
    """Return the other weight of each weight's pair, as indices of a dot product's inputs.

    Args:
        node: A convolution, Gemm or matmul.
        shape: Shape of its weight.

    Returns:
        (inputs,); -1 for the last channel of an odd number.
    """
    is_conv = node.op_type == "Conv"
    channels = shape[k_axis(node)]
    taps = int(np.prod(shape[2:])) if is_conv else 1
    other = np.arange(channels) ^ 1
    found = np.where(other < channels, other * taps, -1)[:, None] + np.arange(taps)
    found[other >= channels] = -1
    return found.reshape(-1)
