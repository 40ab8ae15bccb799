"""The float reference: random inputs, ONNX Runtime's outputs, and comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvmopt import host
from tvmopt.compare import (
    FLOAT_TOLERANCE,
    HALF_TOLERANCE,
    QUANTISED_TOLERANCE,
    Tolerance,
    deviation,
)
from tvmopt.device import dtypes
from tvmopt.errors import AccuracyError, ModelError, in_one_line
from tvmopt.frontend.categories import read_tables
from tvmopt.frontend.external import graphs
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.prepare import session_options
from tvmopt.frontend.shapes import graph_inputs
from tvmopt.kernels.recurrence import GATES
from tvmopt.random_inputs import KINDS, random_arrays
from tvmopt.runtime.metadata import TensorSpec

Arrays = dict[str, np.ndarray]
_MOST_DIMENSIONS = 64  # of a NumPy array
# Operators that sort: values that are nearly equal may change places.
_SORTING = ("TopK", "NonMaxSuppression")
_BIAS = 3  # place of B in the inputs of recurrent layers
_LOSSY = (b"Relu", b"HardSigmoid")  # activations in which ONNX Runtime loses NaN


class Reference:
    """The float model in ONNX Runtime.

    Args:
        model: A model with static input shapes, or its path.
        threads: Number of threads of the session; 0 for one for each usable core.

    Raises:
        ModelError: When ONNX Runtime rejects the model.
    """

    def __init__(self, model: onnx.ModelProto | str, threads: int = 0) -> None:
        import onnxruntime as ort

        source = model if isinstance(model, str) else model.SerializeToString()
        options = session_options(model, threads)
        try:
            self.session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except onnxruntime_errors() as error:
            raise ModelError(
                f"ONNX Runtime must load the model, but says: {in_one_line(error)}; "
                "export the model again"
            ) from error
        self.output_names = [o.name for o in self.session.get_outputs()]

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in the order of the ONNX graph."""
        return self.session.run(self.output_names, dict(inputs))


def input_specs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return name, shape and dtype of every input of a model with static shapes.

    Raises:
        ModelError: When an input is not numeric, or the inputs exceed the memory.
    """
    specs = []
    tables = read_tables(model).inputs
    for value in graph_inputs(model):
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype.kind not in "fiub":
            raise ModelError(
                f"model inputs must be numeric tensors, but {value.name!r} holds {dtype}"
            )
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        if len(shape) > _MOST_DIMENSIONS:
            raise ModelError(
                f"model inputs must have at most {_MOST_DIMENSIONS} dimensions, but "
                f"{value.name!r} has {len(shape)}"
            )
        categories = tables.get(value.name, ())
        specs.append(TensorSpec(value.name, shape, str(dtype), categories))
    needed = sum(math.prod(s.shape) * np.dtype(s.dtype).itemsize for s in specs)
    if needed > host.memory_bytes():
        raise ModelError(
            f"model inputs must fit into memory ({host.memory_bytes() / 1e9:.0f} GB), but take "
            f"{needed / 1e9:.3g} GB; give smaller input_shapes"
        )
    return tuple(specs)


def working_random_inputs(
    reference: Reference, specs: Sequence[TensorSpec], seed: int
) -> tuple[str, Arrays, list[np.ndarray]]:
    """Return the first kind of random inputs that the reference accepts, with its outputs.

    Raises:
        ModelError: When ONNX Runtime fails on every kind.
    """
    reason = ""
    for kind in KINDS:
        inputs = random_arrays(specs, seed, kind)
        try:
            return kind, inputs, reference(inputs)
        except onnxruntime_errors() as error:  # the reference may reject any input
            reason = in_one_line(error)
    raise ModelError(
        "the reference must run on random inputs (N(0,1), 0 and 1, 0, or 1), but ONNX Runtime "
        f"says: {reason}; give real inputs with data=inputs.npz"
    )


def loses_nan(model: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime turns NaN into numbers in a recurrent layer of ``model``.

    It does in LSTM and GRU with a bias, and in the activations Relu and HardSigmoid. Elsewhere it
    keeps NaN, as ONNX's own reference does in all these cases.
    """
    return any(_is_lossy(node) for graph in graphs(model.graph) for node in graph.node)


def _is_lossy(node: onnx.NodeProto) -> bool:
    if node.op_type not in GATES:
        return False
    if node.op_type != "RNN" and len(node.input) > _BIAS and node.input[_BIAS]:
        return True
    given = [word for a in node.attribute if a.name == "activations" for word in a.strings]
    return any(word in _LOSSY for word in given)


def tolerance_for(model: onnx.ModelProto) -> Tolerance:
    """Return the tolerance against ONNX Runtime for the dtypes of ``model``."""
    quantising = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")
    if any(n.op_type in quantising or _rounds_activations(n) for n in model.graph.node):
        return QUANTISED_TOLERANCE
    half = [dtypes.dtype(name).onnx for name in dtypes.HALF_FLOATS]
    typed = [t.data_type for t in model.graph.initializer]
    typed += [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    return in_any_order(model, HALF_TOLERANCE if any(t in half for t in typed) else FLOAT_TOLERANCE)


def in_any_order(model: onnx.ModelProto, tolerance: Tolerance) -> Tolerance:
    """Return ``tolerance``, which lets rows change places if ``model`` sorts."""
    sorts = any(node.op_type in _SORTING for graph in graphs(model.graph) for node in graph.node)
    return dataclasses.replace(tolerance, measure="rows") if sorts else tolerance


def _rounds_activations(node: onnx.NodeProto) -> bool:
    """Return whether ONNX Runtime quantises the activations of a MatMulNBits to int8."""
    return node.op_type == "MatMulNBits" and any(
        a.name == "accuracy_level" and a.i == 4 for a in node.attribute
    )


def check_outputs(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    names: Sequence[str],
    what: str,
    tolerance: Tolerance = FLOAT_TOLERANCE,
) -> float:
    """Compare all outputs; return the largest deviation.

    Raises:
        AccuracyError: Names the first output that deviates by more than ``tolerance`` allows.
    """
    if len(actual) != len(expected):
        raise AccuracyError(f"{what} must give {len(expected)} output(s), but gave {len(actual)}")
    worst = 0.0
    actual = tolerance.in_order(actual, expected)
    for name, got, want in zip(names, actual, expected, strict=True):
        if np.asarray(got).shape != np.asarray(want).shape:
            raise AccuracyError(
                f"{what} must give output {name!r} of shape {want.shape}, but gave {got.shape}"
            )
        error = deviation(got, want, tolerance.measure)
        if error > tolerance.limit:
            raise AccuracyError(
                f"{what} must equal ONNX Runtime within {tolerance}, "
                f"but output {name!r} deviates by {error:.3g}"
            )
        worst = max(worst, error)
    return worst
