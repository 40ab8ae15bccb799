"""A model in float32, bfloat16 and int8: ours, and the file that every runtime gets for int8."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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


def lowered(model: Model, dtype: str, target: Any, *, layout: str = "NHWC") -> Any:
    """The fused functions of a model in a number format.

    Args:
        model: The model.
        dtype: One of ``DTYPES``.
        target: A :class:`tvmopt.arch.target.TargetSpec`.
        layout: Layout of the convolutions.
    """
    from tvmopt.frontend import import_onnx
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.lower import lower

    source = model.quantized if dtype == "int8" else model.model
    converted = convert_module(import_onnx(source), dtype=dtype, layout=layout).mod
    return lower(converted, target.to_tvm())


def cosine(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Smallest cosine of two lists of outputs; 1 where both are zero."""
    worst = 1.0
    for one, other in zip(got, expected, strict=True):
        a, b = (np.asarray(x, "float64").ravel() for x in (one, other))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        worst = min(worst, float(a @ b) / norm if norm else float(np.array_equal(a, b)))
    return worst
