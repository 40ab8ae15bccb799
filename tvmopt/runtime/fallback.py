"""The fallback of a compiled network: direct convolutions where Winograd convolutions give NaN.

A Winograd convolution subtracts inputs from each other, so that an infinity becomes NaN, and a NaN
spreads over its tile. A library with such convolutions holds the network a second time, without
them (:mod:`tvmopt.transform.fallback`). It is called only where an output holds NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

#: Function of a compiled network that computes what ``main`` does by direct convolutions.
FALLBACK = "main_direct"


def fallback(machine: Any, inputs: Sequence[Any]) -> Callable[[], Any] | None:
    """What runs the fallback on ``inputs``; None where the library has none.

    Args:
        machine: TVM's virtual machine with the network loaded.
        inputs: Tensors on its device that every call reads.
    """
    if not machine.module.implements_function(FALLBACK):
        return None
    direct = machine[FALLBACK]
    return lambda: direct(*inputs)


def holds_nan(arrays: Iterable[np.ndarray]) -> bool:
    """Whether an array of floats holds NaN."""
    for array in arrays:
        if array.dtype.kind == "f" and array.size:
            least = np.minimum.reduce(array, axis=None)  # NaN if any is; one pass, no temporary
            if least != least:
                return True
    return False
