"""Check that a model with codes answers as the model with strings that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import AccuracyError, ModelError, in_one_line
from tvmopt.frontend.categories.tables import Tables
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.reference import Arrays, Reference

# A string that stands for those in no table.
_OTHER = "\x01 in no table"


def check_codes(
    model: onnx.ModelProto, tables: Tables, inputs: Arrays, expected: Sequence[np.ndarray]
) -> None:
    """Run the model with strings on the same inputs, and compare the outputs.

    Args:
        model: The model as its file has it.
        tables: Tables of the model with codes.
        inputs: Inputs of the model with codes.
        expected: Its outputs.

    Raises:
        ModelError: When ONNX Runtime fails on the strings.
        AccuracyError: When an output differs; names it.
    """
    reference = Reference(model)
    given = {name: _strings(array, tables.inputs.get(name)) for name, array in inputs.items()}
    try:
        outputs = reference(given)
    except onnxruntime_errors() as error:
        raise ModelError(
            f"the model must run on strings in ONNX Runtime, but it says: {in_one_line(error)}"
            "; export the model for numbers"
        ) from error
    for name, codes, want in zip(reference.output_names, expected, outputs, strict=True):
        if not _same(codes, want, tables.outputs.get(name), tables.columns.get(name)):
            raise AccuracyError(
                f"the model must answer alike on strings and on their codes, but output {name!r} "
                "differs; export the model for numbers, and report the model as a bug"
            )


def _strings(codes: np.ndarray, table: Sequence[str] | None) -> np.ndarray:
    return codes if table is None else np.array([*table, _OTHER], object)[codes]


def _same(
    codes: np.ndarray, want: Any, table: Sequence[str] | None, columns: Sequence[str] | None
) -> bool:
    if columns is not None:
        found = [[_by_text(row)[column] for column in columns] for row in want]
        return np.array_equal(np.array(found, codes.dtype), codes, equal_nan=True)
    if table is not None:
        return bool(np.array_equal(_strings(codes, table), want))
    is_float = codes.dtype.kind == "f"
    return np.allclose(codes, want, equal_nan=True) if is_float else np.array_equal(codes, want)


def _by_text(row: Mapping[Any, float]) -> dict[str, float]:
    return {str(label): score for label, score in row.items()}
