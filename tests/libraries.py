"""Run a library that was just built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.library import open_library


def loaded(path: Path) -> Callable[..., list[np.ndarray]]:
    """Return a function from input arrays to output arrays of the library at ``path``."""
    executor = open_library(str(path), threads=2)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        tensors = [executor.tensor(array) for array in arrays]
        return [executor.read(tensor) for tensor in executor.bind(MAIN, tensors)()]

    return run
