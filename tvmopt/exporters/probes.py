"""Rows that nobody gave, made from the example's rows, to compare an export with its source.

A few rows seldom come near a threshold of a tree or a tie of two neighbours. An export whose inputs
are rounded to float32 may answer them as the source does, and one row in a thousand otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

_ROWS, _MOST_ROUNDS, _MOST_S = 500, 8, 2.0
_NOISE = 0.1


def probes(table: Any) -> Iterator[Any]:
    """Yield tables of rows, at most 4,000 rows and no more after two seconds.

    The values of each column are drawn from the table. Fractions get noise, a tenth of the
    column's standard deviation, so that they lie between the values of the table; whole numbers and
    texts may be categories, and get none.

    Args:
        table: A pandas table, or an array of shape (rows, columns).
    """
    random = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(_MOST_ROUNDS):
        if hasattr(table, "iloc"):
            yield _of_table(table, random)
        else:
            yield _of_array(np.asarray(table), random)
        if time.perf_counter() - start > _MOST_S:
            return


def _of_table(table: Any, random: np.random.Generator) -> Any:
    import pandas

    columns = {}
    for name in table.columns:
        values = table[name].to_numpy()
        drawn = values[random.integers(0, len(values), _ROWS)]
        columns[name] = pandas.Series(_noisy(drawn, values, random)).astype(table[name].dtype)
    return pandas.DataFrame(columns)


def _of_array(table: np.ndarray, random: np.random.Generator) -> np.ndarray:
    columns = []
    for values in table.T:
        drawn = values[random.integers(0, len(values), _ROWS)]
        columns.append(_noisy(drawn, values, random))
    return np.stack(columns, axis=1).astype(table.dtype)


def _noisy(drawn: np.ndarray, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Add noise to fractions; a column without any fraction gets none."""
    if values.dtype.kind != "f":
        return drawn
    finite = values[np.isfinite(values)]
    if not len(finite) or np.array_equal(finite, np.round(finite)):
        return drawn
    spread = float(finite.std()) or float(np.abs(finite).max())
    return drawn + _NOISE * spread * random.standard_normal(len(drawn))
