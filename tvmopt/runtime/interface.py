"""The interface of a source model: what its ``predict`` takes and returns.

A compiled model computes tensors. Its source was called with a table (or an array), and returned
labels, probabilities or values; maybe of other dtypes and with texts. :class:`SourceInterface` says
how the tensors follow from the table, and the answer from the tensors. The ONNX file that an
exporter wrote carries it, and so does the metadata of the compiled model. Texts stay texts here:
tables of categories turn them into codes (:mod:`tvmopt.runtime.categories`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.printable import is_printable
from tvmopt.runtime.numeric_table import numbers_of
from tvmopt.runtime.source_column import SourceColumn as SourceColumn
from tvmopt.runtime.source_column import check_values, column_values, source_column, text_of

#: Key of the interface in the metadata of an ONNX file.
INTERFACE_KEY = "tvmopt.interface"
#: What an answer is: classes, scores of classes, values of a regression, or the tensor as it is.
LABELS, PROBABILITIES, VALUES, TENSOR = "labels", "probabilities", "values", "tensor"
ANSWERS = (LABELS, PROBABILITIES, VALUES, TENSOR)
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class SourceInterface:
    """What ``predict`` of a source model takes and returns.

    Attributes:
        flavor: MLflow flavor of the source.
        source: URI of the source, such as ``models:/fraud/3``; empty if unknown.
        signature: Signature of the source in MLflow's JSON; None if it had none.
        columns: Columns of the table, in order; empty if the source takes tensors.
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
        columns = tuple(source_column(one) for one in data["columns"])
        classes = data["classes"]
        found = cls(
            **{
                **data,
                "columns": columns,
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
        """Return the ONNX inputs of a table, an array or a mapping of arrays; texts as objects.

        Args:
            data: What ``predict`` of the source takes: a pandas ``DataFrame``, an array of shape
                (rows, columns), a mapping by column or by input, or nested lists.
            dtypes: NumPy dtype of each ONNX input that holds numbers; any for texts.
            strict: Whether values that the source refuses are refused.

        Raises:
            ConfigError: When a column is missing, or holds values that the source refuses.
        """
        if not self.columns:
            return _tensors(data, dtypes)
        if self._numeric is not None and [*dtypes] == [self.columns[0].input]:
            names, finite, largest = self._numeric
            limit = largest if strict else None
            numbers = numbers_of(data, names, finite=finite and strict, largest=limit)
            if numbers is not None:
                return {name: np.array(numbers, dtype, order="C") for name, dtype in dtypes.items()}
        table = self._columns(data)
        rows = len(next(iter(table.values())))
        widths = dict.fromkeys(dtypes, 0)
        for column in self.columns:
            widths[column.input] = max(widths[column.input], column.position + 1)
        texts = {column.input for column in self.columns if column.text}
        arrays = {
            name: np.empty((rows, widths[name]), object if name in texts else np.dtype(dtype))
            for name, dtype in dtypes.items()
        }
        for column in self.columns:
            values = table[column.name]
            if strict:
                check_values(column, values)
            if column.text:
                values = np.array([text_of(value) for value in values], object)
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

    @functools.cached_property
    def _numeric(self) -> tuple[list[str], bool, float | None] | None:
        """Names of the columns, whether one must be finite or there, and the largest number of all.

        None if one is no number. The columns are in the order of the only ONNX input.
        """
        for position, column in enumerate(self.columns):
            if column.text or column.allowed is not None or column.position != position:
                return None
            if column.input != self.columns[0].input:
                return None
        finite = not all(column.missing and column.infinite for column in self.columns)
        limits = [column.largest for column in self.columns if column.largest is not None]
        return [column.name for column in self.columns], finite, min(limits, default=None)

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
            found = {
                column.name: column_values(data[column.name], column) for column in self.columns
            }
        else:
            array = np.asarray(data)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise ConfigError(
                    f"the array must have shape (rows, {len(names)}), one column each for "
                    f"{_listed(names)}, but got {array.shape}"
                )
            found = {c.name: column_values(array[:, i], c) for i, c in enumerate(self.columns)}
        rows = {len(values) for values in found.values()}
        if rows == {0}:
            raise ConfigError(
                "the table must hold at least one row, but holds none; call it with rows"
            )
        if len(rows) != 1:
            raise ConfigError(f"every column must have as many rows, but got {sorted(rows)}")
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


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown}, +{len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
