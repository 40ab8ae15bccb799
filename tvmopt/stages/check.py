"""Check a converted model: compile, run, compare with ONNX Runtime, and find a wrong layer."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import tvm

from tvmopt import host
from tvmopt.build import BuiltLibrary, build_library
from tvmopt.compare import Tolerance, cosine, deviation
from tvmopt.device.target import TargetSpec, set_thread_environment
from tvmopt.errors import TVM_ERRORS, AccuracyError, ConfigError, TvmoptError
from tvmopt.frontend import Layer
from tvmopt.frontend.reference import Arrays, Reference, check_outputs
from tvmopt.runtime.fallback import fallback
from tvmopt.runtime.library import open_library
from tvmopt.runtime.network import network
from tvmopt.runtime.segments import register_segments
from tvmopt.stages import kept_library
from tvmopt.stages.lower_network import lower_network
from tvmopt.transform.fallback import has_winograd
from tvmopt.transform.lower import lower

AS_CLOSE = 1.1
"""Error of a compiled quantised model over ONNX Runtime's that chance rounding explains."""

# A segment for ONNX Runtime that refuses its inputs raises ConfigError.
_RUN_ERRORS: tuple[type[Exception], ...] = (ConfigError, *TVM_ERRORS)

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Inputs to check a conversion on.

    Attributes:
        what: Description for messages.
        inputs: Arrays by input name, in the order of the graph.
        expected: Outputs of the float model.
        real: Whether the inputs resemble the calibration data, so that a quantised model must
            follow the float model on them.
    """

    what: str
    inputs: Arrays
    expected: list[np.ndarray]
    real: bool


@dataclasses.dataclass(frozen=True)
class Criteria:
    """Accuracy that a conversion must keep.

    Attributes:
        name: Name of the conversion for messages.
        tolerance: Allowed deviation from ONNX Runtime on the same graph; None checks the cosine
            alone.
        min_cosine: Minimum cosine with the float model.
    """

    name: str
    tolerance: Tolerance | None
    min_cosine: float


@dataclasses.dataclass(frozen=True)
class Findings:
    """Worst values over all trials.

    Attributes:
        deviation: Deviation from ONNX Runtime on the same graph; None when not a criterion.
        cosine: Cosine with the float model.
        outputs: Outputs of the compiled module on the last trial.
    """

    deviation: float | None
    cosine: float
    outputs: list[np.ndarray]


def compile_for_check(
    mod: tvm.IRModule,
    target: TargetSpec,
    keep_in: Path | None = None,
    lowered: tvm.IRModule | None = None,
) -> Run:
    """Compile with the default schedules; return a function from arrays to arrays.

    The check of a conversion has no part for Winograd convolutions, which round otherwise.

    Args:
        mod: Module of Relax operators.
        target: Target to compile for.
        keep_in: Output folder of the convert stage, to keep the library for the build stage
            (:mod:`tvmopt.stages.kept_library`), where that has a function for the check.
        lowered: ``mod`` lowered for ``target``, where that is known; for ``keep_in``.
    """
    set_thread_environment(target.threads)
    register_segments(target.threads)
    host.request_amx(target.cpu_flags)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        built = None if keep_in is None else _kept(mod, target, keep_in, lowered)
        if built is None:
            direct = lower(mod, target.to_tvm(), winograd=False)
            built = build_library(direct, target, Path(folder) / "check.so", quick=True)
        path = built.path
        device = tvm.cpu() if target.gpu is None else tvm.cuda(0)
        executor = open_library(
            str(path), threads=target.threads, native=built.native, device=device
        )

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs = [executor.tensor(array) for array in arrays]
        try:
            on_gpu = target.gpu is not None
            # Owns the outputs' memory.
            runner = fallback(executor, inputs) or network(executor, inputs, on_gpu)
            result = runner()
        except _RUN_ERRORS as error:
            raise AccuracyError(f"the import must run, but it failed: {error}") from error
        return [executor.read(tensor) for tensor in result]

    return run


def _kept(
    mod: tvm.IRModule, target: TargetSpec, keep_in: Path, lowered: tvm.IRModule | None
) -> BuiltLibrary | None:
    """Build what the build stage would build without tuning records.

    Returns:
        The library; None where it has Winograd convolutions, but no fallback to check.
    """
    path = kept_library.path_in(keep_in)
    if path.parent.exists():  # of an earlier import, which was wrong
        shutil.rmtree(path.parent)
    made = lower_network(mod, target, lowered=lowered)
    if made.direct is None and has_winograd(made.mod):
        return None
    path.parent.mkdir()
    built = build_library(made.mod, target, path, direct=made.direct)
    kept_library.keep(keep_in, built, target, made.segments, made.mod)
    return built


def check_conversion(
    run: Run, trials: Sequence[Trial], names: Sequence[str], criteria: Criteria, exact: Reference
) -> Findings:
    """Compare the compiled module with ONNX Runtime on every trial.

    Args:
        run: The compiled module.
        trials: Inputs to run; not empty.
        names: Names of the outputs.
        criteria: Accuracy to keep.
        exact: ONNX Runtime on the imported graph: the float model, or the quantised one.

    Raises:
        AccuracyError: When a criterion does not hold.
    """
    worst: float | None = None if criteria.tolerance is None else 0.0
    least = 1.0
    for trial in trials:
        got = run(list(trial.inputs.values()))
        if criteria.tolerance is not None:
            got = list(criteria.tolerance.in_order(got, trial.expected))
        # On inputs unlike its calibration data, a quantised model saturates, and its outputs may be
        # noise.
        comparable = trial.real or (criteria.tolerance and criteria.tolerance.measure != "rms")
        if criteria.tolerance is not None and worst is not None and comparable:
            worst = max(worst, _check_same(got, exact(trial.inputs), trial, names, criteria))
        if trial.real:
            least = min(least, _check_cosine(got, trial, names, criteria))
    return Findings(worst, least, got)


def _check_same(
    got: list[np.ndarray],
    expected: Sequence[np.ndarray],
    trial: Trial,
    names: Sequence[str],
    criteria: Criteria,
) -> float:
    """Return the deviation from ONNX Runtime on the same graph.

    Where an output of a quantised model is sensitive to rounding, two right implementations deviate
    by more than the tolerance. An output may so deviate where it is nearly as close to the float
    model as ONNX Runtime's is: within the tolerance, for layers in bfloat16. Whether that is close
    enough, the accuracy decides.
    """
    tolerance = criteria.tolerance
    assert tolerance is not None
    what = f"{criteria.name} on {trial.what}"
    try:
        return check_outputs(got, expected, names, what, tolerance)
    except AccuracyError:
        if tolerance.measure != "rms" or not len(got) == len(expected) == len(trial.expected):
            raise
        worst = 0.0
        for actual, same, plain in zip(got, expected, trial.expected, strict=True):
            apart = deviation(actual, same, tolerance.measure)
            errors = [deviation(side, plain, tolerance.measure) for side in (actual, same)]
            most = max(AS_CLOSE * errors[1], errors[1] + tolerance.limit)
            if apart > tolerance.limit and not errors[0] <= most < np.inf:
                raise
            worst = max(worst, apart)
        return worst


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
    """Return a sentence on the first layer whose output differs from the float model's.

    The output of every layer becomes an output of the model, which is converted again.

    Args:
        convert: The conversion to check: ONNX model to converted module.
        float_model: The float model, prepared.
        model: Input of ``convert``: ``float_model``, or its quantised form.
        layers: The layer table.
        trial: Inputs to run.
        target: Target to compile for.
        min_cosine: Minimum cosine of a correct layer.
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
    """Return ``model`` with the output of every layer as an output, and the layers' numbers."""
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
