"""Check a conversion against ONNX Runtime, and name the first layer whose output differs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
import tvm

from tvmopt.compare import QUANTISED_TOLERANCE, Tolerance, deviation, model_tolerance
from tvmopt.device import dtypes
from tvmopt.device.target import TargetSpec
from tvmopt.errors import TVM_ERRORS, AccuracyError, ModelError, last_line
from tvmopt.frontend.external import graphs
from tvmopt.frontend.reference import Reference, in_any_order, loses_nan, tolerance_for
from tvmopt.kernels.recurrence import GATES
from tvmopt.quantize import is_quantized
from tvmopt.stages.check import (
    AS_CLOSE,
    Criteria,
    Findings,
    Run,
    Trial,
    check_conversion,
    first_bad_layer,
)
from tvmopt.stages.float_model import FloatModel
from tvmopt.stages.non_finite import NonFinite, compare_non_finite
from tvmopt.stages.signature import Signature


class Check:
    """Compare a conversion with ONNX Runtime.

    Args:
        model: The float model.
        source: The ONNX model that was imported: the float model, or its quantised form, or with
            rounded thresholds.
        dtype: dtype in which layers multiply, such as ``"tf32"``.
        layout: Layout of the conversion.
        has_halves: Whether some layers of an int8 conversion compute in a 16-bit float.
    """

    def __init__(
        self,
        model: FloatModel,
        source: onnx.ModelProto,
        dtype: str,
        layout: str,
        *,
        has_halves: bool = False,
    ) -> None:
        self._model, self._source, self._dtype = model, source, dtype
        is_float = source is model.prepared.model
        self._rounds_thresholds = dtype == "float32" and not is_float
        least = dtypes.dtype(dtype if is_float else "int8").min_cosine
        self._criteria = _criteria(source, dtype, layout, has_halves, least)
        self._exact = model.reference if is_float else Reference(source)

    def __call__(
        self, run: Run, convert: Callable[[onnx.ModelProto], tvm.IRModule], target: TargetSpec
    ) -> Findings:
        """Run all trials.

        Args:
            run: The compiled module.
            convert: Converts another ONNX model in the same way.
            target: Target to compile for.

        Raises:
            AccuracyError: When a criterion does not hold; names the first layer at fault.
        """
        model = self._model
        try:
            return check_conversion(
                run, model.trials, model.reference.output_names, self._criteria, self._exact
            )
        except AccuracyError as error:
            if name := _with_nan(model.trials):
                raise AccuracyError(
                    f"{error}; the data holds NaN in input {name!r}: remove such samples"
                ) from error
            culprit = first_bad_layer(
                convert,
                model.prepared.model,
                self._source,
                model.layers,
                next((t for t in reversed(model.trials) if t.real), model.trials[-1]),
                target,
                self._criteria.min_cosine,
            )
            raise AccuracyError(f"{error}; {culprit}") from error

    def non_finite(self, run: Run) -> NonFinite | None:
        """Compare the answers to NaN and infinities; None where they are not comparable."""
        return compare_non_finite(
            run,
            self._exact,
            self._model.inputs,
            self._model.reference.output_names,
            dtype=self._dtype,
            quantised=is_quantized(self._source),
            kind=self._model.random_inputs,
            exact_loses_nan=loses_nan(self._source),
        )

    def golden_outputs(self, findings: Findings | None, signature: Signature) -> list[np.ndarray]:
        """Return the outputs that the library must reproduce on the last trial.

        In another dtype, the compiled module's own outputs, where it ran.
        """
        golden = self._model.trials[-1]
        if findings is not None and signature.is_rounded:
            return findings.outputs
        is_float = self._exact is self._model.reference
        return golden.expected if is_float else self._exact(golden.inputs)

    def signature(self, findings: Findings | None) -> Signature:
        """Return the signature of the converted model.

        Args:
            findings: Of the check, where the compiled module ran.
        """
        return Signature(
            inputs=self._model.inputs,
            outputs=self._model.outputs,
            random_inputs=self._model.random_inputs,
            tolerance=self._golden_tolerance(findings),
            min_cosine=self._criteria.min_cosine,
            dtype=self._dtype,
            any_rows=self._model.any_rows,
            class_scores=self._model.class_scores,
            rounds_thresholds=self._rounds_thresholds,
        )

    def _golden_tolerance(self, findings: Findings | None) -> Tolerance:
        """Return the deviation from the golden outputs that a library may have.

        Two right libraries round differently, and are as far apart as two errors of the size that
        the check's library has, where that is more than the dtype's tolerance.
        """
        stated = self._criteria.tolerance or in_any_order(
            self._source, library_tolerance(self._dtype)
        )
        golden = self._model.trials[-1]
        if findings is None or self._dtype == "float32" or not golden.real:
            return stated
        return with_room_for(stated, findings.outputs, golden.expected)


@contextlib.contextmanager
def compiler_errors(what: str) -> Iterator[None]:
    """Turn an error of the compiler's passes into a :class:`ModelError` in one line."""
    try:
        yield
    except TVM_ERRORS as error:
        raise ModelError(
            f"the model must {what}, but the compiler says: {last_line(error)}; change the model, "
            "or export it with another opset"
        ) from error


def _criteria(
    source: onnx.ModelProto, dtype: str, layout: str, has_halves: bool, min_cosine: float
) -> Criteria:
    plain = dtype == "float32" and layout == "NCHW"
    name = "the import" if plain else f"the conversion to {dtype} in {layout}"
    # An int8 conversion rounds the weights of recurrent layers, which stay float32 in ``source``.
    rounds = has_halves or dtype in (*dtypes.HALF_FLOATS, dtypes.TF32.name)
    rounds = rounds or (dtype == "int8" and _is_recurrent(source))
    tolerance = None if rounds else tolerance_for(source)
    return Criteria(name, tolerance, min_cosine)


def library_tolerance(dtype: str) -> Tolerance:
    """Return the tolerance of a rounded model's library against the library of the check.

    A model with int8 layers rounds to steps, also where its other layers are in 16 bits.
    """
    return QUANTISED_TOLERANCE if dtype == "int8" else model_tolerance(dtype)


def with_room_for(
    tolerance: Tolerance, outputs: Sequence[np.ndarray], exact: Sequence[np.ndarray]
) -> Tolerance:
    """Return a tolerance within which two independent errors of one size differ.

    Args:
        tolerance: The least tolerance.
        outputs: Outputs with such an error.
        exact: The outputs without it.
    """
    outputs = tolerance.in_order(outputs, exact)
    errors = (deviation(a, e, tolerance.measure) for a, e in zip(outputs, exact, strict=True))
    apart = AS_CLOSE * math.sqrt(2) * max(errors, default=0.0)
    if not tolerance.limit < apart < math.inf:
        return tolerance
    return dataclasses.replace(tolerance, limit=apart)


def _is_recurrent(model: onnx.ModelProto) -> bool:
    return any(node.op_type in GATES for graph in graphs(model.graph) for node in graph.node)


def _with_nan(trials: Sequence[Trial]) -> str:
    """Return the name of an input with a NaN in some trial; empty where there is none."""
    for trial in trials:
        for name, array in trial.inputs.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                return name
    return ""
