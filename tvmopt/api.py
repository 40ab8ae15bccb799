"""One call from an ONNX model to a compiled model in memory, without MLflow."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt import config as configs
from tvmopt.choices import AUTO, U8S8_PAIRS
from tvmopt.errors import ConfigError
from tvmopt.parameters import groups
from tvmopt.parameters.config_file import unknown
from tvmopt.parameters.declare import Group
from tvmopt.scratch import scratch_folder
from tvmopt.versions import require_tvm

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from tvmopt.device.target import TargetSpec
    from tvmopt.runtime import CompiledModel

#: An axis of a shape: an integer, or a list, set or range of sizes.
Extent = int | Sequence[int] | Set[int]
#: Shapes of inputs and sizes of dimensions by name; a range is a set of sizes, a list is a shape.
InputShapes = Mapping[str, Sequence[Extent] | int | Set[int] | str] | str

_GROUPS: tuple[type[Group], ...] = (
    groups.ConversionParameters,
    groups.Tf32Parameters,
    groups.QuantizationParameters,
    groups.CalibrationParameters,
    groups.SensitivityLimitParameters,
    groups.MetricParameters,
    groups.AccuracyParameters,
    groups.TuningParameters,
)
_logger = logging.getLogger("tvmopt")
_DEFAULTS: dict[str, Any] = {"strategy": "default"}


def compile(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: InputShapes | None = None,
    target: str = "host",
    threads: int = 0,
    *,
    data: Mapping[str, np.ndarray] | str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    **parameters: Any,
) -> CompiledModel:
    """Compile an ONNX model; return it loaded, ready to call.

    The model is converted, checked against ONNX Runtime, scheduled, compiled and checked again, by
    the same code as the entry point ``main``, in this process. What ONNX Runtime runs is a warning
    of the logger ``tvmopt``: the nodes, and why they are not compiled.

    Args:
        model: Path of an ONNX file, its bytes, or a ``ModelProto``.
        input_shapes: Shape of every dynamic input by its name, or size of every dynamic dimension
            by its name, as a mapping or as ``"image:1x3x224x224"``, ``"batch=1,sequence=16"``.
            Sets of sizes are ``{"batch": {1, 4, 16}, "sequence": range(16, 129, 16)}``,
            ``{"image": ([1, 4, 16], 3, 224, 224)}`` or ``"image:{1,4,16}x3x224x224"``;
            ``"sequence=auto"`` takes sizes that fit the samples in ``data``.
        target: As the parameter ``target`` of ``main``; this machine must run it.
        threads: Threads of the compiled model; 0: all cores.
        data: Samples to check and calibrate on: a ``.npz`` or ``.npy`` file, or arrays by input
            name whose first axis counts samples; ``labels`` are the labels.
        output: New or empty folder that also gets the compiled model, for :func:`tvmopt.load`.
        parameters: Further parameters of ``main`` by name: ``layout``, ``dtype``, ``skip_layers``,
            ``quantization``, ``calibration``, ``quantizer``, ``metric`` (what ``dtype="auto"`` and
            ``skip_layers="auto"`` must keep), ``strategy`` (here ``"default"``, which measures
            nothing), ``topk``, and so on.

    Raises:
        TvmoptError: One line that says what to do: the model or a parameter is refused, or results
            differ from ONNX Runtime's.
    """
    require_tvm()
    from tvmopt.device.target import resolve_target
    from tvmopt.runtime import load
    from tvmopt.runtime.bundle import copy_bundle
    from tvmopt.stages.proposed_shapes import proposed_shapes

    values = _checked(parameters)
    spec = resolve_target(target, threads)
    if lacking := spec.why_not_here():
        raise ConfigError(f"target must run on this machine, but {lacking}; use the entry points")
    folder = None if output is None else _empty_folder(Path(output))
    with scratch_folder() as work:
        file = _file(model, work)
        samples = _samples(data, work)
        text = proposed_shapes(_text(input_shapes), file, samples)
        bundle = _Stages(work, file, text, samples, spec, values).bundle()
        compiled = load(bundle)
        if folder is not None:
            copy_bundle(bundle, folder)
    return compiled


def _checked(parameters: Mapping[str, Any]) -> dict[type[Group], Group]:
    known = {one.name: one for group in _GROUPS for one in group.parameters()}
    unknown("a parameter", parameters, known)
    given = {**_DEFAULTS, **parameters}
    found = {}
    for group in _GROUPS:
        names = [one.name for one in group.parameters()]
        found[group] = group(**{name: given[name] for name in names if name in given})
    return found


class _Stages:
    """The stages from a model file to a bundle, each in a separate folder."""

    def __init__(
        self,
        work: Path,
        model: Path,
        input_shapes: str,
        data: Path | None,
        target: TargetSpec,
        values: Mapping[type[Group], Group],
    ) -> None:
        self._work, self._target, self._shapes = work, target.to_dict(), input_shapes
        self._read = {"model": model} | ({} if data is None else {"data": data})
        self._values = {group: parameters.values() for group, parameters in values.items()}
        asked = self._values[groups.QuantizationParameters]["quantization"]
        self._quantization = target.int8_operands if asked == AUTO else asked

    def bundle(self) -> Path:
        """Run the stages; return the folder with library, metadata and golden outputs."""
        from tvmopt.stages.build import BUNDLE_DIR

        conversion = {
            **self._values[groups.ConversionParameters],
            **self._values[groups.Tf32Parameters],
        }
        tuning = self._values[groups.TuningParameters]
        convert = configs.ConvertConfig(
            self._shapes, self._target, self._quantization, **conversion
        )
        inputs = dict(self._read)
        if convert.may_quantise:
            inputs["calibrate"] = self._calibrated()
        if convert.needs_analysis:
            inputs["sensitivity"] = self._sensitive(convert.dtype, inputs)
        converted = self._run("convert", convert, inputs)
        tune = configs.TuneConfig(self._target, **tuning)
        tuned = self._run("tune", tune, {"convert": converted})
        schedule = "none" if tune.strategy == "none" else configs.BuildConfig.schedule
        build = configs.BuildConfig(self._read["model"].stem, self._target, schedule)
        built = self._run("build", build, {"convert": converted, "tune": tuned})
        return built / BUNDLE_DIR

    def _calibrated(self) -> Path:
        values = self._values[groups.CalibrationParameters]
        config = configs.CalibrateConfig(self._shapes, self._quantization == U8S8_PAIRS, **values)
        return self._run("calibrate", config, self._read)

    def _sensitive(self, dtype: str, inputs: Mapping[str, Path]) -> Path:
        from tvmopt.device.target import TargetSpec
        from tvmopt.frontend.load import load_onnx
        from tvmopt.quantize.roofline import analysed_dtypes
        from tvmopt.stages.asked_metric import check_labels
        from tvmopt.stages.metric_files import digest_of_file, with_whole_paths

        metric = with_whole_paths(groups.MetricParameters(**self._values[groups.MetricParameters]))
        check_labels(metric.metric, load_onnx(self._read["model"]), self._read.get("data"))
        asked = configs.SensitivityConfig(
            self._shapes,
            self._target,
            analysed_dtypes(dtype, TargetSpec.from_dict(self._target)),
            self._quantization,
            layer_dtypes=dtype == AUTO,
            metric_sha256=digest_of_file(metric),
            **metric.values(),
            **self._values[groups.AccuracyParameters],
            **self._values[groups.SensitivityLimitParameters],
        )
        return self._run("sensitivity", asked, inputs)

    def _run(self, stage: str, config: configs.StageConfig, inputs: Mapping[str, Path]) -> Path:
        from tvmopt.digest import canonical_json, sha256_text
        from tvmopt.frontend.partition import RUN_ELSEWHERE
        from tvmopt.stages.registry import STAGES, StageCall

        folder = self._work / stage
        folder.mkdir()
        digest = sha256_text(canonical_json({"stage": stage, "config": config.to_dict()}))
        call = StageCall(config.to_dict(), inputs, digest, folder, lambda *_: None)
        for line in STAGES[stage].run(call).changed:
            if RUN_ELSEWHERE in line:
                _logger.warning("%s", line)
        return folder


def _file(model: str | os.PathLike[str] | bytes | onnx.ModelProto, work: Path) -> Path:
    """Return the path of the model; what is in memory is written to ``work`` first."""
    if isinstance(model, str | os.PathLike):
        return Path(model).expanduser()
    path = work / "model.onnx"
    if isinstance(model, bytes):
        path.write_bytes(model)
        return path
    import onnx

    if not isinstance(model, onnx.ModelProto):
        raise ConfigError(
            f"model must be a path, bytes or an onnx.ModelProto, but got {type(model).__name__}"
        )
    onnx.save_model(model, str(path))
    return path


def _samples(
    data: Mapping[str, np.ndarray] | str | os.PathLike[str] | None, work: Path
) -> Path | None:
    if data is None:
        return None
    if isinstance(data, Mapping):
        import numpy as np

        path = work / "data.npz"
        np.savez(path, allow_pickle=False, **dict(data))
        return path
    path = Path(data).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"data must be an existing .npz or .npy file, but there is none at '{path}'"
        )
    return path


def _text(input_shapes: InputShapes | None) -> str:
    if input_shapes is None or isinstance(input_shapes, str):
        return input_shapes or ""
    from tvmopt.frontend.given_sets import escaped, format_extent

    entries = []
    for name, value in input_shapes.items():
        if isinstance(value, str | int | range | Set):
            entries.append(f"{escaped(name)}={format_extent(value)}")
        else:
            entries.append(f"{escaped(name)}:{'x'.join(map(format_extent, value))}")
    return ",".join(entries)


def _empty_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"output must be a folder that is new or empty, but '{folder}' is not"
            "; name another one, or empty it"
        )
    return folder
