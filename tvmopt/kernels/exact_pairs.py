"""Attribute of a PrimFunc: pairs of products of its int8 weights never saturate in int16.

``vpmaddubsw`` adds two products of uint8 data and int8 weights in int16. A pair cannot saturate,
whatever the data, where its weights of one sign add up to at most 128: 255 * 128 fits into int16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm import tirx

EXACT_PAIRS = "tvmopt.exact_pairs"
LARGEST_PAIR_SUM = 128


def has_exact_pairs(func: tirx.PrimFunc) -> bool:
    """Return whether every constant int8 weight of ``func`` has exact pairs along K."""
    return bool((func.attrs or {}).get(EXACT_PAIRS, False))


def largest_pair_sums(weight: np.ndarray) -> np.ndarray:
    """Return the largest sum of the weights of one sign in a pair of neighbours along K.

    Args:
        weight: Integers or floats, (..., K); the pairs are (0, 1), (2, 3), ...

    Returns:
        (...,), not negative; int16 for 8-bit weights.
    """
    wide = weight if weight.dtype.kind == "f" else weight.astype(np.int16)
    if wide.shape[-1] % 2:
        wide = np.pad(wide, [(0, 0)] * (wide.ndim - 1) + [(0, 1)])
    even, odd = wide[..., 0::2], wide[..., 1::2]
    positive = np.maximum(even, 0) + np.maximum(odd, 0)
    negative = np.maximum(-even, 0) + np.maximum(-odd, 0)
    largest: np.ndarray = np.maximum(positive, negative).max(axis=-1, initial=0)
    return largest


def is_exact(weight: np.ndarray) -> bool:
    """Return whether no pair of ``weight``, int8 (..., K), can saturate."""
    return bool((largest_pair_sums(weight) <= LARGEST_PAIR_SUM).all())
