"""Read the JSON body of a scoring request: arrays that fit the inputs of a model, or a refusal.

MLflow's own server casts what it gets: ``null`` becomes NaN, text becomes a number, 1.5 becomes 1
for an integer input. Here names, shapes and types of values must fit. No message repeats what the
body holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tvmopt.runtime.categories import encoded
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking.serving.refusal import RefusedRequestError

#: Extent that may be any number.
OPEN = -1

_INPUTS, _INSTANCES = "inputs", "instances"
_JSON_TYPES: dict[str, set[type]] = {"f": {int, float}, "i": {int}, "u": {int}, "b": {bool}}
_JSON_NAMES: dict[type, str] = {
    bool: "true or false", dict: "an object", float: "a number with a fraction",
    int: "a whole number", list: "a list", str: "text", type(None): "null",
}  # fmt: skip


def read_body(body: bytes, inputs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Return the arrays in ``body``, by input.

    Args:
        body: ``{"inputs": ...}`` or ``{"instances": ...}``, as MLflow's scoring server takes it.
        inputs: Inputs of the model; an extent of -1 may be any number, the same for all inputs if
            it is the first.

    Raises:
        RefusedRequestError: With the rule, and what was found.
    """
    # Texts may hold any number of commas and brackets.
    if not any(spec.categories or OPEN in spec.shape for spec in inputs):
        _check_count(body, inputs)
    data = _parse(body)
    if not isinstance(data, dict) or len(data) != 1 or not data.keys() <= {_INPUTS, _INSTANCES}:
        raise RefusedRequestError(
            f"the body must be a JSON object with one key, '{_INPUTS}' or '{_INSTANCES}'; the "
            f"model takes {in_words(inputs)}, and no tables"
        )
    [(key, value)] = data.items()
    if key == _INSTANCES and isinstance(value, list) and value and isinstance(value[0], dict):
        return _of_instances(value, inputs)
    if not isinstance(value, dict):
        if len(inputs) != 1:
            raise RefusedRequestError(f"'{key}' must name each input: {in_words(inputs)}")
        value = {inputs[0].name: value}
    _check_names(value, inputs)
    if all(spec.shape[:1] == (OPEN,) for spec in inputs):
        _require_common_rows([value[spec.name] for spec in inputs])
    shapes = [_extents(value[spec.name], spec.shape) for spec in inputs]
    return {
        spec.name: _array([value[spec.name]], spec, shape, shape)
        for spec, shape in zip(inputs, shapes, strict=True)
    }


def in_words(inputs: Sequence[TensorSpec]) -> str:
    """Names, types and shapes of inputs, for messages; an extent of any number is ``n``."""
    return ", ".join(
        f"{spec.name!r} ({_kind(spec)} {_words(spec.shape) or 'scalar'})" for spec in inputs
    )


def _kind(spec: TensorSpec) -> str:
    return "text" if spec.categories else spec.dtype


def _words(shape: Sequence[int]) -> str:
    return "x".join("n" if extent == OPEN else str(extent) for extent in shape)


def _extents(value: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of nested lists, where ``shape`` leaves an extent open; at least 1."""
    found = []
    for extent in shape:
        length = len(value) if isinstance(value, list) else 0
        found.append(max(1, length) if extent == OPEN else extent)
        value = value[0] if length else None
    return tuple(found)


def _require_common_rows(values: Sequence[Any]) -> None:
    """Refuse values that are not lists of the same length."""
    lengths = {len(value) if isinstance(value, list) else None for value in values}
    if len(lengths) != 1 or lengths <= {None, 0}:
        raise RefusedRequestError(
            "every input must be a list of as many rows, at least one, but they are not"
        )


def _check_count(body: bytes, inputs: Sequence[TensorSpec]) -> None:
    """Refuse what would take far more memory once parsed: an empty list has 2 bytes, then 64."""
    most = 64 + sum(
        math.prod(spec.shape) * (len(spec.shape) + 3 + _count(spec.name.encode()))
        for spec in inputs
    )
    if _count(body) > most:
        raise RefusedRequestError(
            f"the body must hold only the values of the inputs, {in_words(inputs)}, but has more "
            f"than {most} commas and opening brackets"
        )


def _count(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _parse(body: bytes) -> Any:
    rule = "the body must be JSON in UTF-8, but"
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RefusedRequestError(f"{rule} byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"is malformed at character {error.pos}" if body.strip() else "is empty"
        raise RefusedRequestError(f"{rule} {where}") from error
    except RecursionError as error:
        raise RefusedRequestError(f"{rule} is nested too deeply") from error
    except ValueError as error:  # Python's own limit of digits
        raise RefusedRequestError(f"{rule} holds an integer of too many digits") from error


def _check_names(value: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> None:
    missing = [spec.name for spec in inputs if spec.name not in value]
    unknown = len(value) - len(inputs) + len(missing)
    if missing or unknown:
        raise RefusedRequestError(
            f"the inputs must be exactly {in_words(inputs)}, but {len(missing)} of them are "
            f"missing and {unknown} are unknown"
        )


def _of_instances(items: list[Any], inputs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    for item in items:
        if not isinstance(item, dict):
            raise RefusedRequestError(f"'{_INSTANCES}' must hold objects only, or none")
        _check_names(item, inputs)
    found = {}
    for spec in inputs:
        if spec.shape[:1] not in ((len(items),), (OPEN,)):
            raise RefusedRequestError(
                f"the first dimension of every input must be the number of instances, but there "
                f"are {len(items)}, and the model takes {in_words(inputs)}"
            )
        values = [item[spec.name] for item in items]
        nested = _extents(values[0], spec.shape[1:])
        found[spec.name] = _array(values, spec, (len(items), *nested), nested)
    return found


def _array(
    level: list[Any], spec: TensorSpec, shape: Sequence[int], nested: Sequence[int]
) -> np.ndarray:
    """Return an array of nested lists; every step is one call of C for all lists of a level.

    Args:
        level: The lists, or the values of a scalar.
        spec: The input.
        shape: Shape of the array.
        nested: Shape of one element of ``level``.
    """
    rule = f"input {spec.name!r} must be {_kind(spec)} of shape {'x'.join(map(str, shape))}"
    for depth, size in enumerate(nested, len(shape) - len(nested)):
        _check_types(level, {list}, rule)
        sizes = set(map(len, level)) - {size}
        if sizes:
            raise RefusedRequestError(
                f"{rule}, but dimension {depth} has {min(sizes)} values instead of {size}"
            )
        level = list(chain.from_iterable(level))
    if spec.categories:
        _check_types(level, {str}, rule)
        return encoded(spec.name, spec.categories, np.array(level, object)).reshape(shape)
    dtype = np.dtype(spec.dtype)
    _check_types(level, _JSON_TYPES[dtype.kind], rule)
    try:
        values = np.array(level, np.float64 if dtype.kind == "f" else dtype)
    except OverflowError as error:
        raise RefusedRequestError(f"{rule}, but a value does not fit that type") from error
    with np.errstate(over="ignore"):  # MLflow's server gives infinity as well
        return values.astype(dtype, copy=False).reshape(shape)


def _check_types(level: list[Any], allowed: set[type], rule: str) -> None:
    wrong = set(map(type, level)) - allowed
    if wrong:
        found = " and ".join(sorted(_JSON_NAMES[kind] for kind in wrong))
        raise RefusedRequestError(f"{rule}, but holds {found} where it must not")
