"""Run-time fallback to direct convolutions when Winograd convolutions give NaN.

A Winograd convolution subtracts inputs from each other, so that an infinity becomes NaN, and a NaN
spreads over its tile. A library with Winograd convolutions therefore contains a second version of
the network without them (:mod:`tvmopt.transform.fallback`). It runs only when an output has NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tvmopt.runtime.executor import Executor
from tvmopt.runtime.sizes import of_size

#: Name of the compiled function that computes ``main`` with direct convolutions.
FALLBACK = "main_direct"


def fallback(
    executor: Executor, inputs: Sequence[Any], size: int = 0
) -> Callable[[], Sequence[Any]] | None:
    """Return a function that runs the fallback on ``inputs``; None when the library has none.

    Args:
        executor: The network, loaded.
        inputs: Input tensors on its device, shared by every call.
        size: Which of its sizes.
    """
    name = of_size(FALLBACK, size)
    return executor.bind(name, inputs) if executor.has(name) else None


def holds_nan(arrays: Iterable[np.ndarray]) -> bool:
    """Return whether any float array contains NaN."""
    for array in arrays:
        if array.dtype.kind == "f" and array.size:
            least = np.minimum.reduce(array, axis=None)  # NaN if any is; one pass, no temporary
            if least != least:
                return True
    return False
