"""Run-time fallback to direct convolutions when Winograd convolutions give NaN.

A Winograd convolution subtracts inputs from each other, so that an infinity becomes NaN, and a NaN
spreads over its tile. A library with Winograd convolutions therefore contains a second version of
the network without them (:mod:`tvmopt.transform.fallback`). It runs only when an output has NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

#: Name of the compiled function that computes ``main`` with direct convolutions.
FALLBACK = "main_direct"


def fallback(machine: Any, inputs: Sequence[Any]) -> Callable[[], Any] | None:
    """Return a function that runs the fallback on ``inputs``; None when the library has none.

    Args:
        machine: TVM's virtual machine with the network loaded.
        inputs: Input tensors on its device, shared by every call.
    """
    if not machine.module.implements_function(FALLBACK):
        return None
    direct = machine[FALLBACK]
    return lambda: direct(*inputs)


def holds_nan(arrays: Iterable[np.ndarray]) -> bool:
    """Return whether any float array contains NaN."""
    for array in arrays:
        if array.dtype.kind == "f" and array.size:
            least = np.minimum.reduce(array, axis=None)  # NaN if any is; one pass, no temporary
            if least != least:
                return True
    return False
