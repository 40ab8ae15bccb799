"""What the float model computes: inputs to try it on, ONNX Runtime's outputs, and comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort

from tvmopt.compare import TOLERANCE, deviation
from tvmopt.errors import AccuracyError, ModelError
from tvmopt.frontend.prepare import session_options
from tvmopt.frontend.shapes import graph_inputs

Arrays = dict[str, np.ndarray]


class Reference:
    """The float model in ONNX Runtime.

    Args:
        model: A model with static input shapes, or the path of one.
        threads: Threads of the session; 0 for ONNX Runtime's default.
    """

    def __init__(self, model: onnx.ModelProto | str, threads: int = 0) -> None:
        source = model if isinstance(model, str) else model.SerializeToString()
        self.session = ort.InferenceSession(
            source, session_options(threads), providers=["CPUExecutionProvider"]
        )
        self.output_names = [o.name for o in self.session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs in the order of the ONNX graph."""
        return self.session.run(self.output_names, dict(inputs))


def random_inputs(model: onnx.ModelProto, seed: int) -> Arrays:
    """Random inputs that a model is likely to take: floats from N(0, 1), integers 0 or 1.

    Integers are usually ids, lengths or masks, and 0 and 1 are valid as all three.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for value in graph_inputs(model):
        tensor = value.type.tensor_type
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype.kind in "iub":
            arrays[value.name] = rng.integers(0, 2, shape).astype(dtype)
        elif dtype == np.float64 or dtype.itemsize < 4 or dtype == np.float32:
            arrays[value.name] = np.asarray(rng.standard_normal(shape), dtype)
        else:
            raise ModelError(
                f"model inputs must be numeric tensors, but {value.name!r} holds {dtype}"
            )
    return arrays


def working_random_inputs(
    reference: Reference, model: onnx.ModelProto, seed: int
) -> tuple[Arrays, list[np.ndarray]]:
    """Random inputs that the reference accepts, and its outputs for them.

    Raises:
        ModelError: When ONNX Runtime fails on them.
    """
    inputs = random_inputs(model, seed)
    try:
        return inputs, reference(inputs)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"the reference must run on random inputs (N(0,1), integers 0 or 1), but ONNX Runtime "
            f"says: {reason}; give real inputs with data=inputs.npz"
        ) from error


def check_outputs(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    names: Sequence[str],
    what: str,
    tolerance: float = TOLERANCE,
) -> float:
    """Compare all outputs; returns the largest deviation.

    Raises:
        AccuracyError: Naming the first output that deviates by more than ``tolerance``.
    """
    if len(actual) != len(expected):
        raise AccuracyError(
            f"{what} must give {len(expected)} output(s), but gave {len(actual)}"
        )
    worst = 0.0
    for name, got, want in zip(names, actual, expected, strict=True):
        if np.asarray(got).shape != np.asarray(want).shape:
            raise AccuracyError(
                f"{what} must give output {name!r} of shape {want.shape}, but gave {got.shape}"
            )
        error = deviation(got, want)
        if error > tolerance:
            raise AccuracyError(
                f"{what} must equal ONNX Runtime within {tolerance:g} (relative to the largest "
                f"value), but output {name!r} deviates by {error:.3g}"
            )
        worst = max(worst, error)
    return worst
