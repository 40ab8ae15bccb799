"""Prepare a model in float32, bfloat16 and int8 for tvmopt and its peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Model:
    """A model before conversion, with its inputs.

    Attributes:
        model: Constant-folded model, for the importer of tvmopt.
        reference: The same model with static shapes, not folded, for the peers.
        quantized: QDQ model for every runtime, calibrated on ``inputs``.
        inputs: Input arrays by name, in the order of the graph.
        quantise: Function from names of nodes that stay float to a QDQ model; None where the model
            came quantised.
    """

    model: onnx.ModelProto
    reference: onnx.ModelProto
    quantized: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    quantise: Callable[[Collection[str]], onnx.ModelProto] | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """Input arrays in the order of the graph."""
        return list(self.inputs.values())


def quantized_model(prepared: Any, inputs: Mapping[str, np.ndarray]) -> Model:
    """Quantise a prepared model for this CPU, calibrated on one batch; enough for latency.

    A model that is quantised already stays unchanged.
    """
    from tvmopt.device.target import resolve_target
    from tvmopt.quantize import Scheme, collect_ranges, is_quantized
    from tvmopt.quantize.quantizer import Quantizer

    ordered = {name: inputs[name] for name in prepared.input_shapes}
    if is_quantized(prepared.model):
        return Model(prepared.model, prepared.reference, prepared.model, ordered)
    scheme = Scheme(resolve_target("host").int8_operands)
    ranges = collect_ranges(prepared.model, [ordered], scheme, lambda *_: None)
    quantise = Quantizer(prepared.model, ranges, scheme)
    return Model(prepared.model, prepared.reference, quantise(()), ordered, quantise)


def read(
    path: Path,
    shapes: str,
    threads: int,
    make_inputs: Callable[[onnx.ModelProto], dict[str, np.ndarray]] | None = None,
) -> Model:
    """Read and quantise a model.

    Args:
        path: The ONNX file.
        shapes: Input shapes, as text.
        threads: Threads of the ONNX Runtime session that validates random inputs.
        make_inputs: Function from the model to its inputs; None draws random inputs.

    Raises:
        ModelError: When the model cannot be read.
    """
    from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs

    prepared = prepare(load_onnx(path), parse_input_shapes(shapes))
    if make_inputs is not None:
        inputs = make_inputs(prepared.reference)
    else:
        reference = Reference(prepared.reference, threads)
        inputs = working_random_inputs(reference, input_specs(prepared.reference), seed=0)[1]
    return quantized_model(prepared, inputs)


def converted(model: Model, dtype: str, *, layout: str = "NHWC") -> Any:
    """Convert a model to a dtype; return the Relax module.

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
    """Convert a model to a dtype and lower it to fused PrimFuncs for a ``TargetSpec``."""
    from tvmopt.transform.lower import lower

    return lower(converted(model, dtype), target.to_tvm())


def cosine(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Smallest cosine similarity over pairs of outputs; 1 for two zero arrays."""
    worst = 1.0
    for one, other in zip(got, expected, strict=True):
        a, b = (np.asarray(x, "float64").ravel() for x in (one, other))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        worst = min(worst, float(a @ b) / norm if norm else float(np.array_equal(a, b)))
    return worst
