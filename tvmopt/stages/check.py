"""Is a converted model what it was? Compile it, run it, compare, and find the culprit."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax

from tvmopt import host
from tvmopt.build import build_library
from tvmopt.compare import Tolerance, cosine
from tvmopt.device.target import TargetSpec, set_thread_environment
from tvmopt.errors import AccuracyError, TvmoptError
from tvmopt.frontend import Layer
from tvmopt.frontend.reference import Arrays, Reference, check_outputs
from tvmopt.runtime.network import network
from tvmopt.transform.lower import lower

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Inputs to check a conversion on.

    Attributes:
        what: Words for them.
        inputs: Arrays by input name, in the order of the graph.
        expected: What the float model computes.
        real: Whether they are like those the model was calibrated on, so that a quantised model
            must follow the float model on them.
    """

    what: str
    inputs: Arrays
    expected: list[np.ndarray]
    real: bool


@dataclasses.dataclass(frozen=True)
class Criteria:
    """What a conversion must keep.

    Attributes:
        name: Words for the conversion.
        tolerance: Deviation allowed from ONNX Runtime on the same graph; None to go by the cosine
            alone.
        min_cosine: Smallest cosine with the float model.
    """

    name: str
    tolerance: Tolerance | None
    min_cosine: float


@dataclasses.dataclass(frozen=True)
class Findings:
    """Worst values over all trials.

    Attributes:
        deviation: From ONNX Runtime on the same graph; None when that was no criterion.
        cosine: With the float model.
        outputs: What the compiled module gave on the last trial.
    """

    deviation: float | None
    cosine: float
    outputs: list[np.ndarray]


def compile_for_check(mod: tvm.IRModule, target: TargetSpec) -> Run:
    """Compile with the default schedules; gives a function from arrays to arrays."""
    set_thread_environment(target.threads)
    host.request_amx(target.cpu_flags)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        path = Path(folder) / "check.so"
        build_library(lower(mod, target.to_tvm(), winograd=False), target, path, quick=True)
        device = tvm.cpu() if target.gpu is None else tvm.cuda(0)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), device)

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs = [tvm.runtime.tensor(a, device) for a in arrays]
        try:
            runner = network(machine, inputs, target.gpu is not None)  # owns the outputs' memory
            result = runner()
        except Exception as error:
            raise AccuracyError(f"the import must run, but it failed: {error}") from error
        items = [result] if hasattr(result, "numpy") else list(result)
        return [item.numpy() for item in items]

    return run


def check_conversion(
    run: Run, trials: Sequence[Trial], names: Sequence[str], criteria: Criteria, exact: Reference
) -> Findings:
    """Compare the compiled module with ONNX Runtime on every trial.

    Args:
        run: The compiled module.
        trials: What to run it on; not empty.
        names: Names of the outputs.
        criteria: What must hold.
        exact: ONNX Runtime on the graph that was imported: the float model, or the quantised one.

    Raises:
        AccuracyError: When a criterion does not hold.
    """
    worst: float | None = None if criteria.tolerance is None else 0.0
    least = 1.0
    for trial in trials:
        got = run(list(trial.inputs.values()))
        # On inputs unlike those it was calibrated on, a quantised model saturates, and what is left
        # of its numbers may be noise.
        comparable = trial.real or (criteria.tolerance and criteria.tolerance.measure == "max")
        if criteria.tolerance is not None and worst is not None and comparable:
            what = f"{criteria.name} on {trial.what}"
            expected = exact(trial.inputs)
            error = check_outputs(got, expected, names, what, criteria.tolerance)
            worst = max(worst, error)
        if trial.real:
            least = min(least, _check_cosine(got, trial, names, criteria))
    return Findings(worst, least, got)


def _check_cosine(
    got: list[np.ndarray], trial: Trial, names: Sequence[str], criteria: Criteria
) -> float:
    least = 1.0
    for name, actual, wanted in zip(names, got, trial.expected, strict=True):
        found = cosine(actual, wanted)
        if found < criteria.min_cosine:
            raise AccuracyError(
                f"{criteria.name} must follow the float model (cosine at least "
                f"{criteria.min_cosine:g}), but output {name!r} has cosine {found:.4f} on "
                f"{trial.what}"
            )
        least = min(least, found)
    return least


def first_bad_layer(
    convert: Callable[[onnx.ModelProto], tvm.IRModule],
    float_model: onnx.ModelProto,
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    trial: Trial,
    target: TargetSpec,
    min_cosine: float,
) -> str:
    """Words for the first layer whose own output leaves the float model's; empty if there is none.

    Every layer's output is made an output of the model, which is then converted as before.

    Args:
        convert: ONNX model to converted module, the conversion in question.
        float_model: The float model, prepared.
        model: What ``convert`` was given: ``float_model``, or its quantised form.
        layers: The layer table.
        trial: What to run on.
        target: What to compile for.
        min_cosine: Smallest cosine that is no fault.
    """
    tapped, taps = _with_layer_outputs(model, layers)
    reference, wanted_taps = _with_layer_outputs(float_model, layers)
    outputs = len(model.graph.output)
    try:
        got = compile_for_check(convert(tapped), target)(list(trial.inputs.values()))
        wanted = Reference(reference)(trial.inputs)
    except TvmoptError as error:
        return f"no layer could be named: {error}"
    actual = dict(zip(taps, got[outputs:], strict=True))
    expected = dict(zip(wanted_taps, wanted[outputs:], strict=True))
    for layer in layers:
        if layer.index in actual and layer.index in expected:
            found = cosine(actual[layer.index], expected[layer.index])
            if found < min_cosine:
                return (
                    f"the first bad layer is {layer.index} ({layer.name!r}, {layer.op}), with "
                    f"cosine {found:.4f}; skip it with skip_layers={layer.index}, or let "
                    "skip_layers=auto choose"
                )
    return "no layer alone is bad: what lies between them is"


def _with_layer_outputs(
    model: onnx.ModelProto, layers: Sequence[Layer]
) -> tuple[onnx.ModelProto, list[int]]:
    """``model`` with the output of every layer as a further output; the numbers of the layers."""
    numbers = {layer.name: layer.index for layer in layers}
    known = {output.name for output in model.graph.output}
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    indices = []
    for node in model.graph.node:
        if node.name in numbers and node.output[0] not in known:
            tapped.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.output[0]))
            indices.append(numbers[node.name])
    return tapped, indices
