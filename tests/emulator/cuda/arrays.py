"""Pass arrays between two processes: raw bytes in a file, shape and dtype beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (NumPy knows the names of its types then)
import numpy as np


def write_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Write an array; return the arguments of :func:`read_array`."""
    path.write_bytes(np.ascontiguousarray(array).tobytes())
    return {"path": str(path), "shape": list(array.shape), "dtype": array.dtype.name}


def read_array(about: dict[str, Any]) -> np.ndarray:
    """Return a new array with the contents that :func:`write_array` wrote."""
    data = Path(about["path"]).read_bytes()
    return np.frombuffer(data, np.dtype(about["dtype"])).reshape(about["shape"]).copy()
