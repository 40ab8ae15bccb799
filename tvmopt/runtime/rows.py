"""Run any number of rows through a model that is compiled for some, in several calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tvmopt.runtime.metadata import TensorSpec

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def run_rows(
    run: Run, arrays: Sequence[np.ndarray], rows: int, outputs: Sequence[TensorSpec]
) -> list[np.ndarray]:
    """Return the outputs of all rows of ``arrays``.

    The last call is filled up with copies of the last row; what they give is dropped.

    Args:
        run: Runs the model on ``rows`` rows.
        arrays: Inputs, each of as many rows.
        rows: Rows of a call.
        outputs: Outputs of a call.
    """
    count = len(arrays[0])
    results = [np.empty((count, *spec.shape[1:]), spec.dtype) for spec in outputs]
    for start in range(0, count, rows):
        places = np.minimum(np.arange(start, start + rows), count - 1)
        values = run([array[places] for array in arrays])
        for result, value in zip(results, values, strict=True):
            result[start : start + rows] = value[: count - start]
    return results
