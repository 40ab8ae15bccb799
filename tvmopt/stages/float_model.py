"""Read the float model of a conversion, and run it: the numbers that conversion must keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tvmopt.errors import ConfigError, ModelError, in_one_line
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import (
    Layer,
    Prepared,
    layer_table,
    load_onnx,
    prepare,
    shapes_for,
)
from tvmopt.frontend.categories import Tables, read_tables
from tvmopt.frontend.categories.check import check_codes
from tvmopt.frontend.class_scores import ClassScores, find_class_scores
from tvmopt.frontend.independent_rows import rows_are_independent
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.reference import Arrays, Reference, input_specs, working_random_inputs
from tvmopt.random_inputs import KINDS, random_arrays
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.stages.check import Trial

_REAL_TRIALS = 2


@dataclasses.dataclass(frozen=True)
class FloatModel:
    """The float model, and what it computes.

    Attributes:
        prepared: The model, ready for import.
        reference: The model in ONNX Runtime.
        inputs: Its inputs.
        outputs: Its outputs.
        random_inputs: Kind of random inputs that it accepts.
        trials: Inputs and outputs to check a conversion on; the last one becomes golden.
        layers: Its layer table.
        any_rows: Whether the first axis of all inputs and outputs counts independent samples; known
            of the largest size.
        class_scores: Whether the first output holds scores of classes.
    """

    prepared: Prepared
    reference: Reference
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    random_inputs: str
    trials: list[Trial]
    layers: list[Layer]
    any_rows: bool
    class_scores: ClassScores


def read_float_model(
    model: Path, input_shapes: str, data: Path | None, *, is_largest: bool = True
) -> FloatModel:
    """Read, prepare and run the ONNX file ``model``.

    Args:
        model: The ONNX file.
        input_shapes: The parameter ``input_shapes``.
        data: The user's data; trials come from its calibration part.
        is_largest: Whether it is the largest size, or the only one. Data of other shapes is refused
            then, and left alone otherwise; and only then the rows are looked at.
    """
    loaded = load_onnx(model)
    prepared = prepare(loaded, shapes_for(loaded, input_shapes))
    reference = Reference(prepared.reference)
    inputs = input_specs(prepared.reference)
    if data is not None and not is_largest and not _fits(data, inputs):
        data = None
    kind, trials = _trials(reference, inputs, data)
    tables = read_tables(loaded)
    if tables:
        strings = load_onnx(model, keep_strings=True)
        check_codes(strings, tables, trials[-1].inputs, trials[-1].expected)
    outputs = _output_specs(reference.output_names, trials[-1].expected, tables)
    layers = layer_table(prepared.model)
    any_rows = False
    if is_largest:
        other = random_arrays(inputs, 1, kind) if len(trials) == 1 else trials[0].inputs
        any_rows = rows_are_independent(loaded, inputs, [trials[-1].inputs, other], reference)
    scores = find_class_scores(prepared.model)
    return FloatModel(prepared, reference, inputs, outputs, kind, trials, layers, any_rows, scores)


def _fits(data: Path, specs: Sequence[TensorSpec]) -> bool:
    try:
        load_dataset(data, specs)
    except ConfigError:
        return False
    return True


def _trials(
    reference: Reference, specs: Sequence[TensorSpec], data: Path | None
) -> tuple[str, list[Trial]]:
    """Return the kind of random inputs, and the trials that the conversion is checked on."""
    trials = []
    try:
        kind, inputs, outputs = working_random_inputs(reference, specs, seed=0)
        trials.append(Trial("random inputs", inputs, outputs, real=data is None))
    except ModelError:
        if data is None:
            raise
        kind = KINDS[0]  # never used: there is data
    if data is not None:
        dataset = load_dataset(data, specs).split("calibrate")
        # The first sample comes last, because the last trial becomes golden.
        for index in reversed(range(min(len(dataset), _REAL_TRIALS))):
            batch = dataset.batch(index).inputs
            _check_numbers(batch)
            try:
                trials.append(Trial("given inputs", batch, reference(batch), real=True))
            except onnxruntime_errors() as error:
                raise ModelError(
                    f"the reference must run on the given data, but ONNX Runtime says: "
                    f"{in_one_line(error)}"
                    "; give data that the model takes"
                ) from error
    return kind, trials


def _check_numbers(batch: Arrays) -> None:
    for name, array in batch.items():
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).any():
            raise ConfigError(
                f"data must hold numbers, but all of a sample of input {name!r} is NaN or "
                "infinite; check how the file was made"
            )


def _output_specs(
    names: Sequence[str], outputs: Sequence[np.ndarray], tables: Tables
) -> tuple[TensorSpec, ...]:
    specs = []
    for name, output in zip(names, outputs, strict=True):
        if output.dtype.kind not in "fiub":
            raise ModelError(
                f"model outputs must be numeric tensors, but {name!r} holds {output.dtype}; "
                "remove it from the model"
            )
        categories, columns = (side.get(name, ()) for side in (tables.outputs, tables.columns))
        shape = tuple(output.shape)
        specs.append(TensorSpec(name, shape, str(output.dtype), categories, columns))
    return tuple(specs)
