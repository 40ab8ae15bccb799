"""Check the JSON body of a scoring request against the inputs of a model, before MLflow reads it.

MLflow casts what it gets: ``null`` becomes NaN, text becomes a number, 1.5 becomes 1 for an integer
input. Here names, shapes and types of values must fit. No message repeats what the body holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any

import numpy as np

from tvmopt.errors import TvmoptError
from tvmopt.runtime.metadata import TensorSpec

_INPUTS, _INSTANCES = "inputs", "instances"
_JSON_TYPES: dict[str, set[type]] = {"f": {int, float}, "i": {int}, "u": {int}, "b": {bool}}
_JSON_NAMES: dict[type, str] = {
    bool: "true or false", dict: "an object", float: "a number with a fraction",
    int: "a whole number", list: "a list", str: "text", type(None): "null",
}  # fmt: skip


class RefusedRequestError(TvmoptError):
    """A request breaks a rule; the server answers with ``status`` and the message."""

    failure_class = "request"

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def check_body(body: bytes, inputs: Sequence[TensorSpec]) -> None:
    """Raise unless ``body`` is ``{"inputs": ...}`` or ``{"instances": ...}`` that fits ``inputs``.

    Raises:
        RefusedRequestError: With the rule, and what was found.
    """
    _check_count(body, inputs)
    data = _parse(body)
    if not isinstance(data, dict) or len(data) != 1 or not data.keys() <= {_INPUTS, _INSTANCES}:
        raise RefusedRequestError(
            f"the body must be a JSON object with one key, '{_INPUTS}' or '{_INSTANCES}'; the "
            f"model takes {in_words(inputs)}, and no tables"
        )
    [(key, value)] = data.items()
    if key == _INSTANCES and isinstance(value, list) and value and isinstance(value[0], dict):
        _check_instances(value, inputs)
        return
    if not isinstance(value, dict):
        if len(inputs) != 1:
            raise RefusedRequestError(f"'{key}' must name each input: {in_words(inputs)}")
        value = {inputs[0].name: value}
    _check_names(value, inputs)
    for spec in inputs:
        _check_values([value[spec.name]], spec, spec.shape)


def in_words(inputs: Sequence[TensorSpec]) -> str:
    """Names, types and shapes of inputs, for messages."""
    return ", ".join(
        f"{spec.name!r} ({spec.dtype} {'x'.join(map(str, spec.shape)) or 'scalar'})"
        for spec in inputs
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


def _check_instances(items: list[Any], inputs: Sequence[TensorSpec]) -> None:
    for item in items:
        if not isinstance(item, dict):
            raise RefusedRequestError(f"'{_INSTANCES}' must hold objects only, or none")
        _check_names(item, inputs)
    for spec in inputs:
        if spec.shape[:1] != (len(items),):
            raise RefusedRequestError(
                f"the first dimension of every input must be the number of instances, but there "
                f"are {len(items)}, and the model takes {in_words(inputs)}"
            )
        _check_values([item[spec.name] for item in items], spec, spec.shape[1:])


def _check_values(level: list[Any], spec: TensorSpec, shape: Sequence[int]) -> None:
    """Check nested lists level by level; every step is one call of C for all lists of a level."""
    rule = f"input {spec.name!r} must be {spec.dtype} of shape {'x'.join(map(str, spec.shape))}"
    for depth, size in enumerate(shape, len(spec.shape) - len(shape)):
        _check_types(level, {list}, rule)
        sizes = set(map(len, level)) - {size}
        if sizes:
            raise RefusedRequestError(
                f"{rule}, but dimension {depth} has {min(sizes)} values instead of {size}"
            )
        level = list(chain.from_iterable(level))
    dtype = np.dtype(spec.dtype)
    _check_types(level, _JSON_TYPES[dtype.kind], rule)
    try:
        np.array(level, np.float64 if dtype.kind == "f" else dtype)
    except OverflowError as error:
        raise RefusedRequestError(f"{rule}, but a value does not fit that type") from error


def _check_types(level: list[Any], allowed: set[type], rule: str) -> None:
    wrong = set(map(type, level)) - allowed
    if wrong:
        found = " and ".join(sorted(_JSON_NAMES[kind] for kind in wrong))
        raise RefusedRequestError(f"{rule}, but holds {found} where it must not")
