"""Load libraries built by tvmopt and call them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Call
from tvmopt import host


def library_call(path: Path, arrays: Sequence[np.ndarray]) -> Call:
    """Return a call of ``main`` of the library at ``path``; the inputs are bound once."""
    executor, tensors = _opened(path, arrays)
    return executor.bind("main", tensors)


def answer(path: Path, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the library at ``path`` as ``CompiledModel`` does, with the fallback for NaN outputs."""
    from tvmopt.runtime.fallback import fallback, holds_nan

    executor, tensors = _opened(path, arrays)
    outputs = [executor.read(tensor) for tensor in executor.bind("main", tensors)()]
    direct = fallback(executor, tensors)
    if direct is None or not holds_nan(outputs):
        return outputs
    return [executor.read(tensor) for tensor in direct()]


def _opened(path: Path, arrays: Sequence[np.ndarray]) -> tuple[Any, list[Any]]:
    from tvmopt.runtime.library import open_library

    host.request_amx(host.cpu_flags())
    executor = open_library(str(path), threads=0)
    return executor, [executor.tensor(array) for array in arrays]


def arrays_of(result: Any) -> list[np.ndarray]:
    """Convert the result of a call, one tensor or several, to arrays."""
    one = hasattr(result, "numpy") or isinstance(result, np.ndarray)
    items = [result] if one else list(result)
    return [item.numpy() if hasattr(item, "numpy") else np.asarray(item) for item in items]
