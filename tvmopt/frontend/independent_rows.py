"""Find out whether a model computes each row of a batch for itself.

Then a model that is compiled for one batch size takes any number of rows, in several calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvmopt.compare import FLOAT_TOLERANCE, deviation
from tvmopt.errors import ModelError
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.prepare import with_free_rows
from tvmopt.frontend.reference import Reference
from tvmopt.frontend.shapes import declared_dims, graph_inputs
from tvmopt.runtime.metadata import TensorSpec


def rows_are_independent(
    model: onnx.ModelProto,
    specs: Sequence[TensorSpec],
    batches: Sequence[Mapping[str, np.ndarray]],
    reference: Reference,
) -> bool:
    """Return whether the first axis of all inputs and outputs counts independent samples.

    The model must declare the axis as dynamic, by one name for all inputs. ONNX Runtime then runs
    two batches at once and one after the other, with equal results.

    Args:
        model: The model as its file has it.
        specs: Its inputs with static shapes.
        batches: Two batches that the model accepts.
        reference: The model with static shapes.
    """
    names = {_first_name(value) for value in graph_inputs(model)}
    if len(names) != 1 or None in names or len({spec.shape[0] for spec in specs}) != 1:
        return False
    rows = specs[0].shape[0]
    both = {spec.name: np.concatenate([batch[spec.name] for batch in batches]) for spec in specs}
    free = with_free_rows(model, specs)
    refusals: tuple[type[Exception], ...] = (ModelError, *onnxruntime_errors())
    try:
        apart = [reference(batch) for batch in batches]
        together = Reference(free)(both)
    except refusals:  # ONNX Runtime may reject other sizes
        return False
    return rows > 0 and all(
        output.shape[:1] == (len(batches) * rows,)
        and all(part.shape[:1] == (rows,) for part in parts)
        and deviation(output, np.concatenate(parts)) <= FLOAT_TOLERANCE.limit
        for output, *parts in zip(together, *apart, strict=True)
    )


def _first_name(value: onnx.ValueInfoProto) -> str | None:
    """Return the name of an input's first axis; None if it has a size, or there is no axis."""
    dims = declared_dims(value)
    return dims[0] if dims and isinstance(dims[0], str) else None
