"""Run a library that was just built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm

from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.library import open_library
from tvmopt.transform.output_specs import output_specs


def loaded(path: Path, mod: tvm.IRModule) -> Callable[..., list[np.ndarray]]:
    """Return a function from input arrays to output arrays.

    Args:
        path: The library.
        mod: The module that it was built from.
    """
    native = b"tvmopt_main" in path.read_bytes()
    executor = open_library(str(path), output_specs(mod), native=native, threads=2)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        tensors = [executor.tensor(array) for array in arrays]
        return [executor.read(tensor) for tensor in executor.bind(MAIN, tensors)()]

    return run
