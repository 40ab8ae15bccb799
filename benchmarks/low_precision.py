"""A model in float32, bfloat16 and int8: ours, and the file that every runtime gets for int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Model:
    """A model ready to be converted.

    Attributes:
        model: Folded, for our importer.
        reference: With static shapes only, for the peers.
        quantized: The QDQ model, of ranges seen on ``inputs``.
        inputs: By name, in the order of the graph.
    """

    model: onnx.ModelProto
    reference: onnx.ModelProto
    quantized: onnx.ModelProto
    inputs: dict[str, np.ndarray]

    @property
    def arrays(self) -> list[np.ndarray]:
        """The inputs in the order of the graph."""
        return list(self.inputs.values())


def quantized_model(prepared: Any, inputs: Mapping[str, np.ndarray]) -> Model:
    """Quantise a prepared model to u8s8, calibrated on one batch of inputs; for timing.

    A model that is quantised already is taken as it is.
    """
    from tvmopt.quantize import Scheme, collect_ranges, is_quantized, quantize_model

    named = {name: inputs[name] for name in prepared.input_shapes}
    if is_quantized(prepared.model):
        return Model(prepared.model, prepared.reference, prepared.model, named)
    scheme = Scheme()
    ranges = collect_ranges(prepared.model, [named], scheme, lambda *_: None)
    quantized = quantize_model(prepared.model, ranges, scheme)
    return Model(prepared.model, prepared.reference, quantized, named)


def read(
    path: Path,
    shapes: str,
    threads: int,
    known_inputs: Callable[[onnx.ModelProto], dict[str, np.ndarray]] | None = None,
) -> Model:
    """Read and quantise a model.

    Args:
        path: The ONNX file.
        shapes: Input shapes, as text.
        threads: For finding out which inputs it can work with.
        known_inputs: From the model to inputs that mean something to it; None takes random ones.

    Raises:
        ModelError: When the model cannot be read.
    """
    from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs

    prepared = prepare(load_onnx(path), parse_input_shapes(shapes))
    if known_inputs is not None:
        inputs = known_inputs(prepared.reference)
    else:
        reference = Reference(prepared.reference, threads)
        inputs = working_random_inputs(reference, input_specs(prepared.reference), seed=0)[1]
    return quantized_model(prepared, inputs)


def converted(model: Model, dtype: str, *, layout: str = "NHWC") -> Any:
    """The Relax operators of a model in a number format.

    Args:
        model: The model.
        dtype: One of ``DTYPES``.
        layout: Layout of the convolutions.
    """
    from tvmopt.frontend import import_onnx
    from tvmopt.transform.conversion import convert_module

    source = model.quantized if dtype == "int8" else model.model
    return convert_module(import_onnx(source), dtype=dtype, layout=layout).mod


def lowered(model: Model, dtype: str, target: Any) -> Any:
    """The fused functions of a model in a number format, for a ``TargetSpec``."""
    from tvmopt.transform.lower import lower

    return lower(converted(model, dtype), target.to_tvm())


def cosine(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Smallest cosine of two lists of outputs; 1 where both are zero."""
    worst = 1.0
    for one, other in zip(got, expected, strict=True):
        a, b = (np.asarray(x, "float64").ravel() for x in (one, other))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        worst = min(worst, float(a @ b) / norm if norm else float(np.array_equal(a, b)))
    return worst
