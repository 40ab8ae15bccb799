"""A column of a source's table: which values the source accepts, and checks of given values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class SourceColumn:
    """A column of the table, and the values that the source accepts in it.

    Attributes:
        name: Name of the column.
        input: ONNX input that holds it.
        position: Its place on the last axis of that input.
        text: Whether it holds texts.
        missing: Whether the source accepts missing values (NaN; of numbers, None is NaN).
        infinite: Whether the source accepts infinities.
        allowed: The only values that the source accepts; None for any.
        largest: Largest magnitude of finite numbers that it accepts; None for any.
        none: Whether the source accepts None as a missing text; None where it does as for NaN.
    """

    name: str
    input: str
    position: int
    text: bool = False
    missing: bool = True
    infinite: bool = True
    allowed: tuple[str | float, ...] | None = None
    largest: float | None = None
    none: bool | None = None


def source_column(data: Any) -> SourceColumn:
    """Return a column of its JSON object.

    Raises:
        ValueError, TypeError, KeyError: When it is damaged.
    """
    allowed = data["allowed"]
    found = SourceColumn(**{**data, "allowed": None if allowed is None else tuple(allowed)})
    if found.largest is not None and not 0 <= float(found.largest) < math.inf:
        raise ValueError(f"the largest number of a column is {found.largest!r}")
    if type(found.position) is not int or not 0 <= found.position < 2**31:
        raise ValueError(f"the place of a column is {found.position!r}")
    return found


def column_values(values: Any, column: SourceColumn) -> np.ndarray:
    """Return the values of a column as texts (object) or numbers (float64, int64, bool).

    Raises:
        ConfigError: When a column of numbers holds others.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        array = array.reshape(len(array))
    if column.text:
        return array.astype(object)
    try:
        return array if array.dtype.kind in "biuf" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"column {column.name!r} must hold numbers, but got {array.dtype}"
        ) from error


def check_values(column: SourceColumn, values: np.ndarray) -> None:
    """Refuse values that the source refuses.

    Raises:
        ConfigError: When a value is missing, infinite, too large, or no known category.
    """
    if column.text:
        gone = np.array([_is_missing(value) for value in values], bool)
        is_none = np.array([value is None for value in values], bool)
        if column.none is False and column.missing and is_none.any():
            raise ConfigError(
                f"column {column.name!r} must hold NaN for a missing text, since the source takes "
                f"None for something else, but {int(is_none.sum())} of {len(values)} are None"
            )
        refused = gone & ~is_none if column.none else gone
    else:
        gone = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        refused = gone
    if not column.missing and refused.any():
        raise ConfigError(
            f"column {column.name!r} must hold no missing values, which the source refuses, but "
            f"{int(refused.sum())} of {len(values)} are"
        )
    if not column.infinite and values.dtype.kind == "f" and np.isinf(values).any():
        raise ConfigError(
            f"column {column.name!r} must be finite, as the source demands, but holds infinities"
        )
    if column.largest is not None and not column.text:
        finite = values[np.isfinite(values)]
        beyond = finite[np.abs(finite.astype(np.float64)) > column.largest]
        if beyond.size:
            raise ConfigError(
                f"column {column.name!r} must hold numbers of at most {column.largest:g} in "
                f"magnitude, as its source or its input of float32 demands, but holds {beyond[0]:g}"
            )
    if column.allowed is not None:
        kept = values[~gone]
        known = [text_of(value) for value in column.allowed] if column.text else column.allowed
        tested = np.array([text_of(v) for v in kept], object) if column.text else kept
        unknown = tested[~np.isin(tested, np.array(known, object if column.text else None))]
        if unknown.size:
            raise ConfigError(
                f"column {column.name!r} must hold categories that the source was fitted on, but "
                f"holds {unknown.tolist()[0]!r}"
            )


def text_of(value: Any) -> str:
    """Return the text of a value; missing values have a special text."""
    return "nan" if _is_missing(value) else str(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return type(value).__name__ in ("NAType", "NaTType")  # of pandas
