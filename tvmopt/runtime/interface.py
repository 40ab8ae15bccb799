"""The interface of a source model: what its ``predict`` takes and returns.

A compiled model computes tensors. Its source was called with a table (or an array), and returned
labels, probabilities or values; maybe of other dtypes and with texts. :class:`SourceInterface` says
how the tensors follow from the table, and the answer from the tensors. The ONNX file that an
exporter wrote carries it, and so does the metadata of the compiled model.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.printable import is_printable
from tvmopt.runtime.categories import UNKNOWN

#: Key of the interface in the metadata of an ONNX file.
INTERFACE_KEY = "tvmopt.interface"
#: What an answer is: classes, scores of classes, values of a regression, or the tensor as it is.
LABELS, PROBABILITIES, VALUES, TENSOR = "labels", "probabilities", "values", "tensor"
ANSWERS = (LABELS, PROBABILITIES, VALUES, TENSOR)
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class SourceColumn:
    """A column of the table, and the values that the source accepts in it.

    Attributes:
        name: Name of the column.
        input: ONNX input that holds it.
        position: Its place on the last axis of that input.
        text: Whether it holds texts.
        missing: Whether the source accepts missing values (NaN).
        infinite: Whether the source accepts infinities.
        allowed: The only values that the source accepts; None for any.
        none: Whether the source accepts None as a missing text; None where it does as for NaN.
    """

    name: str
    input: str
    position: int
    text: bool = False
    missing: bool = True
    infinite: bool = True
    allowed: tuple[str | float, ...] | None = None
    none: bool | None = None


@dataclasses.dataclass(frozen=True)
class SourceInterface:
    """What ``predict`` of a source model takes and returns.

    Attributes:
        flavor: MLflow flavor of the source.
        source: URI of the source, such as ``models:/fraud/3``; empty if unknown.
        signature: Signature of the source in MLflow's JSON; None if it had none.
        columns: Columns of the table, in order; empty if the source takes tensors.
        words: Texts by their code, in columns and classes of texts.
        answer: What the answer is, see ``ANSWERS``.
        output: ONNX output that holds it.
        classes: Class of each label; None if the output holds the classes themselves.
        dtype: NumPy dtype of the answer.
        flat: Whether the answer has one axis although the output has two.
        as_table: Whether a table in gives a table out, as of PyTorch.
    """

    flavor: str
    source: str
    signature: dict[str, Any] | None
    columns: tuple[SourceColumn, ...]
    words: tuple[str, ...]
    answer: str
    output: str
    classes: tuple[str | float | bool, ...] | None
    dtype: str
    flat: bool = False
    as_table: bool = False

    def to_json(self) -> str:
        """Return the interface as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Any) -> SourceInterface:
        """Return the interface of its JSON object.

        Raises:
            ValueError, TypeError, KeyError: When it is damaged.
        """
        if not isinstance(data, dict):
            raise TypeError(f"an interface is {data!r}")
        columns = tuple(_column(one) for one in data["columns"])
        classes = data["classes"]
        found = cls(
            **{
                **data,
                "columns": columns,
                "words": tuple(map(str, data["words"])),
                "classes": None if classes is None else tuple(classes),
            }
        )
        texts = (found.flavor, found.source, found.answer, found.output, found.dtype)
        if not all(isinstance(text, str) and is_printable(text) for text in texts):
            raise ValueError("a text of the interface holds control characters")
        if found.answer not in ANSWERS or np.dtype(found.dtype).kind not in "biufUO":
            raise ValueError(f"an answer is {found.answer!r} of {found.dtype!r}")
        if found.signature is not None and not isinstance(found.signature, dict):
            raise TypeError(f"the signature is {found.signature!r}")
        return found

    def inputs(
        self, data: Any, dtypes: Mapping[str, str], *, strict: bool = True
    ) -> dict[str, np.ndarray]:
        """Return the ONNX inputs of a table, an array or a mapping of arrays.

        Args:
            data: What ``predict`` of the source takes: a pandas ``DataFrame``, an array of shape
                (rows, columns), a mapping by column or by input, or nested lists.
            dtypes: NumPy dtype of each ONNX input.
            strict: Whether values that the source refuses are refused.

        Raises:
            ConfigError: When a column is missing, or holds values that the source refuses.
        """
        if not self.columns:
            return _tensors(data, dtypes)
        table = self._columns(data)
        rows = len(next(iter(table.values())))
        widths = dict.fromkeys(dtypes, 0)
        for column in self.columns:
            widths[column.input] = max(widths[column.input], column.position + 1)
        arrays = {
            name: np.empty((rows, widths[name]), np.dtype(dtype)) for name, dtype in dtypes.items()
        }
        codes = {word: code for code, word in enumerate(self.words)}
        for column in self.columns:
            values = table[column.name]
            if strict:
                _check_values(column, values)
            if column.text:
                found = [codes.get(_word(value), UNKNOWN) for value in values]
                arrays[column.input][:, column.position] = found
            else:
                arrays[column.input][:, column.position] = values
        return arrays

    def result(self, outputs: Mapping[str, np.ndarray], index: Any = None) -> Any:
        """Return the answer as the source gives it.

        Args:
            outputs: Arrays by ONNX output.
            index: Index of the table that was given, for ``as_table``; None for none.
        """
        array = np.asarray(outputs[self.output])
        if self.flat:
            array = array.reshape(len(array))
        if self.classes is not None:
            array = np.asarray(self.classes, dtype=np.dtype(self.dtype))[array.astype(np.int64)]
        array = array.astype(np.dtype(self.dtype), copy=False)
        if self.as_table and index is not None:
            import pandas

            return pandas.DataFrame(array, index=index)
        return array

    def _columns(self, data: Any) -> dict[str, np.ndarray]:
        """Return the values of each column."""
        names = [column.name for column in self.columns]
        if hasattr(data, "columns") and hasattr(data, "iloc"):  # a pandas table
            data = {str(name): data[name] for name in data.columns}
        if isinstance(data, Mapping):
            missing = [name for name in names if name not in data]
            if missing:
                raise ConfigError(
                    f"the table must hold the columns of the source ({_listed(names)}), but "
                    f"{_listed(missing)} missing"
                )
            found = {column.name: _values(data[column.name], column) for column in self.columns}
        else:
            array = np.asarray(data)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise ConfigError(
                    f"the array must have shape (rows, {len(names)}), one column each for "
                    f"{_listed(names)}, but got {array.shape}"
                )
            found = {c.name: _values(array[:, i], c) for i, c in enumerate(self.columns)}
        rows = {len(values) for values in found.values()}
        if len(rows) != 1 or 0 in rows:
            raise ConfigError(
                f"every column must have as many rows, at least 1, but got {sorted(rows)}"
            )
        return found


def _column(data: Any) -> SourceColumn:
    allowed = data["allowed"]
    found = SourceColumn(**{**data, "allowed": None if allowed is None else tuple(allowed)})
    if type(found.position) is not int or not 0 <= found.position < 2**31:
        raise ValueError(f"the place of a column is {found.position!r}")
    return found


def _tensors(data: Any, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return arrays by input; an input of one axis more than a table takes its columns."""
    if isinstance(data, Mapping):
        return {str(name): np.asarray(value) for name, value in data.items()}
    if len(dtypes) != 1:
        raise ConfigError(f"the model must be given a mapping by input ({_listed([*dtypes])})")
    [(name, dtype)] = dtypes.items()
    if hasattr(data, "to_numpy"):
        data = data.to_numpy()
    array = np.asarray(data)
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"input {name!r} must hold numbers, but got {array.dtype}")
    return {name: array.astype(np.dtype(dtype))}


def _values(values: Any, column: SourceColumn) -> np.ndarray:
    """Return the values of a column as texts (object) or numbers (float64, int64, bool)."""
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


def _check_values(column: SourceColumn, values: np.ndarray) -> None:
    """Refuse values that the source refuses."""
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
    if column.allowed is not None:
        kept = values[~gone]
        known = [_word(value) for value in column.allowed] if column.text else column.allowed
        tested = np.array([_word(v) for v in kept], object) if column.text else kept
        unknown = tested[~np.isin(tested, np.array(known, object if column.text else None))]
        if unknown.size:
            raise ConfigError(
                f"column {column.name!r} must hold categories that the source was fitted on, but "
                f"holds {unknown.tolist()[0]!r}"
            )


def _word(value: Any) -> str:
    """Return the text of a value; missing ones have a text of their own."""
    return "nan" if _is_missing(value) else str(value)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return type(value).__name__ in ("NAType", "NaTType")  # of pandas


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown}, +{len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
