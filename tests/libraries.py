"""Run a library that was just built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm

from tvmopt.runtime.executor import MAIN, open_executor
from tvmopt.transform.output_specs import output_specs


def loaded(path: Path, mod: tvm.IRModule) -> Callable[..., list[np.ndarray]]:
    """Return a function from input arrays to output arrays.

    Args:
        path: The library.
        mod: The module that it was built from.
    """
    module = tvm.runtime.load_module(str(path))
    executor = open_executor(module, tvm.cpu(), output_specs(mod))

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        return [tensor.numpy() for tensor in executor.bind(MAIN, tensors)()]

    return run
