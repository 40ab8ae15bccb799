"""Convert stage: ONNX model to a checked Relax module in a layout and a dtype."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import tvm

from tvmopt.choices import AUTO, FALLBACKS
from tvmopt.config import ConvertConfig
from tvmopt.device.target import TargetSpec
from tvmopt.errors import BuildError, ConfigError, ModelError, UnsupportedOperatorError
from tvmopt.frontend import (
    Imported,
    Layer,
    Prepared,
    import_onnx,
    import_with_segments,
    not_compilable,
)
from tvmopt.frontend.support import Unsupported
from tvmopt.quantize import Scheme, is_quantized, quantize_model
from tvmopt.runtime.bundle import write_golden
from tvmopt.stages.auto_layout import choose_layout
from tvmopt.stages.calibrate import read_ranges
from tvmopt.stages.check import Findings, Run, compile_for_check
from tvmopt.stages.convert_check import Check, compiler_errors
from tvmopt.stages.convert_report import (
    conversion_lines,
    conversion_metrics,
    segment_tags,
    write_changes,
    write_layers,
)
from tvmopt.stages.float_model import read_float_model
from tvmopt.stages.module_files import (
    IMPORTED_FILE,
    QUANTIZED_FILE,
    REFERENCE_FILE,
    write_module,
    write_script,
)
from tvmopt.stages.non_finite import NON_FINITE_TAG, NonFinite
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.sensitivity import read_proposal
from tvmopt.transform.conversion import Conversion, convert_module
from tvmopt.transform.layer_facts import layer_facts
from tvmopt.transform.plan import free_layouts

LAYERS_FILE = "layers.csv"
CHANGES_FILE = "layout_changes.csv"


def convert(
    config: ConvertConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    calibrate_dir: Path | None = None,
    sensitivity_dir: Path | None = None,
) -> StageResult:
    """Read, prepare, quantise, import, convert and check a model.

    Writes the module and its weights, the IR as imported, the quantised ONNX model if there is one,
    the float reference with fixed shapes, the layer table, the layout changes, the signature, and
    golden inputs and outputs (of the data when there is data).

    Args:
        config: Configuration of the stage.
        model: The ONNX file.
        out_dir: Folder for the files.
        progress: Called after each step.
        data: The user's data; the conversion is checked on some of its calibration part.
        calibrate_dir: Output of the calibrate stage; for int8, unless the model is quantised.
        sensitivity_dir: Output of the sensitivity stage; for ``skip_layers="auto"``.

    Raises:
        ConfigError, ModelError, UnsupportedOperatorError: The model cannot be converted so.
        AccuracyError: The module's outputs differ from ONNX Runtime's; names the first bad layer.
    """
    start = time.perf_counter()
    target = TargetSpec.from_dict(config.target)
    progress(0, 5, "read")
    read = read_float_model(model, config.input_shapes, data)
    skipped = _Skipped(
        config.skip_layers.named.resolve(read.layers), _proposed_for_float(config, sensitivity_dir)
    )

    progress(1, 5, "quantise" if config.dtype == "int8" else "import")
    names = [read.layers[i].name for i in skipped.reasons]
    source = _quantised(config, read.prepared, names, calibrate_dir)
    import_ = _Import(read.layers, config, target)
    made = _converted(config, import_, source, skipped, target, progress)
    parted, conversions, config = made.parted, made.conversions, made.config
    converted = conversions(config.layout)

    check = Check(read, source, config.dtype, config.layout)
    tags = {"tvmopt.layout": config.layout, "tvmopt.dtype": config.dtype}
    findings: Findings | None = None
    non_finite: NonFinite | None = None
    run = made.run
    if run is None:
        tags["tvmopt.unchecked"] = f"target {target.device} does not run on this machine"
    else:
        progress(4, 5, "check")

        def convert_tapped(tapped: onnx.ModelProto) -> tvm.IRModule:
            return conversions.convert(import_(tapped).mod, config.layout).mod

        findings = check(run, convert_tapped, target)
        non_finite = check.non_finite(run)

    apart = _in_segments(read.layers, parted)
    rows = _converted_layers(read.layers, converted, {**apart, **skipped.reasons})
    params_bytes = write_module(out_dir, converted.mod)
    write_script(out_dir / IMPORTED_FILE, parted.mod)
    onnx.save_model(read.prepared.reference, str(out_dir / REFERENCE_FILE))
    if source is not read.prepared.model:
        onnx.save_model(source, str(out_dir / QUANTIZED_FILE))
    write_layers(out_dir / LAYERS_FILE, rows)
    write_changes(out_dir / CHANGES_FILE, converted)
    write_golden(out_dir, read.trials[-1].inputs, check.golden_outputs(findings))
    check.signature().write(out_dir)
    progress(5, 5, "done")
    if non_finite is not None:
        tags[NON_FINITE_TAG] = non_finite.tag
    tags |= segment_tags(parted.segments)
    metrics = conversion_metrics(rows, converted, findings, apart)
    metrics |= {"convert_s": time.perf_counter() - start, "params_bytes": float(params_bytes)}
    lines = conversion_lines(config, read, rows, converted, findings, params_bytes)
    lines += [segment.line for segment in parted.segments]
    if non_finite is not None:
        lines.append(non_finite.line)
    return StageResult(metrics, tags, lines)


class _Import:
    """Import a model; for a CPU, what cannot be compiled may become segments."""

    def __init__(self, layers: Sequence[Layer], config: ConvertConfig, target: TargetSpec) -> None:
        self._layers, self._target = layers, target
        self._others: list[Unsupported] = []
        self.has_segments = config.fallback == FALLBACKS[0] and target.gpu is None

    def __call__(self, model: onnx.ModelProto) -> Imported:
        if self.has_segments:
            return import_with_segments(model, self._layers, self._others)
        return Imported(import_onnx(model, self._layers))

    def leave_out_what_does_not_compile(self, model: onnx.ModelProto) -> bool:
        """Compile each node alone; return whether some fail, which become segments from now on."""
        if self.has_segments and not self._others:
            self._others = not_compilable(model, lambda mod: compile_for_check(mod, self._target))
            return bool(self._others)
        return False


@dataclasses.dataclass(frozen=True)
class _Made:
    """A conversion that compiles.

    Attributes:
        parted: The imported module.
        conversions: Its conversions.
        config: The configuration, with the layout that was chosen.
        run: Runs the compiled module; None where this machine cannot.
    """

    parted: Imported
    conversions: _Conversions
    config: ConvertConfig
    run: Run | None


def _converted(
    config: ConvertConfig, import_: _Import, source: onnx.ModelProto, skipped: _Skipped,
    target: TargetSpec, progress: Progress,
) -> _Made:  # fmt: skip
    """Import, convert and compile; leave out nodes that do not compile where the user lets us."""
    try:
        parted = import_(source)
        progress(2, 5, "convert")
        conversions = _Conversions(parted.mod, config.dtype, skipped)
        chosen = dataclasses.replace(config, layout=_layout(config.layout, conversions, target))
        converted = conversions(chosen.layout)
        progress(3, 5, "compile check")
        run = None
        if not target.missing_on_host():
            with compiler_errors("compile"):
                run = compile_for_check(converted.mod, target)
        return _Made(parted, conversions, chosen, run)
    except (ModelError, BuildError, UnsupportedOperatorError):
        if not import_.leave_out_what_does_not_compile(source):
            raise
    return _converted(config, import_, source, skipped, target, progress)


def _in_segments(layers: Sequence[Layer], parted: Imported) -> dict[int, str]:
    """Return the layers that ONNX Runtime runs, by index, with the reason."""
    names = {name for segment in parted.segments for name in segment.nodes}
    return {layer.index: "runs in ONNX Runtime" for layer in layers if layer.name in names}


@dataclasses.dataclass(frozen=True)
class _Skipped:
    """Reasons for skipped layers, by layer index.

    Attributes:
        by_user: Layers that keep dtype and layout.
        for_accuracy: Layers that keep their dtype only.
    """

    by_user: dict[int, str]
    for_accuracy: dict[int, str]

    @property
    def reasons(self) -> dict[int, str]:
        """All of them, sorted; the user's reason where a layer has both."""
        return dict(sorted({**self.for_accuracy, **self.by_user}.items()))


class _Conversions:
    """Convert a module to a dtype, once for each layout.

    Args:
        imported: The imported module.
        dtype: The dtype.
        skipped: Layers to leave alone.
    """

    def __init__(self, imported: tvm.IRModule, dtype: str, skipped: _Skipped) -> None:
        self._imported, self._dtype, self._skipped = imported, dtype, skipped
        self._by_layout: dict[str, Conversion] = {}

    def __call__(self, layout: str) -> Conversion:
        """Return the module in ``layout``."""
        if layout not in self._by_layout:
            self._by_layout[layout] = self.convert(self._imported, layout)
        return self._by_layout[layout]

    def convert(self, mod: tvm.IRModule, layout: str) -> Conversion:
        """Convert another module in the same way."""
        with compiler_errors(f"convert to {self._dtype} in {layout}"):
            return convert_module(
                mod,
                dtype=self._dtype,
                layout=layout,
                skip_layers=self._skipped.by_user,
                keep_dtype=self._skipped.for_accuracy,
            )

    def free_layouts(self) -> None:
        """Let the tuner choose the layout of every layer that the user does not skip."""
        for conversion in self._by_layout.values():
            free_layouts(conversion.mod, self._skipped.by_user)


def _layout(asked: str, conversions: _Conversions, target: TargetSpec) -> str:
    """Return the layout to convert to; for ``auto`` the one with the least predicted time."""
    if asked != AUTO:
        return asked
    with compiler_errors("compile in a layout"):
        layout = choose_layout(lambda layout: conversions(layout).mod, target)
    conversions.free_layouts()
    return layout


def _proposed_for_float(config: ConvertConfig, sensitivity_dir: Path | None) -> dict[int, str]:
    """Return the layers of the proposed skip set, by index, with the reason."""
    if not config.skip_layers.auto or sensitivity_dir is None:
        return {}
    reason = "skip_layers: auto (sensitivity)"
    return dict.fromkeys(read_proposal(sensitivity_dir, config.dtype), reason)


def _quantised(
    config: ConvertConfig, prepared: Prepared, exclude: Sequence[str], calibrate_dir: Path | None
) -> onnx.ModelProto:
    """Return the model to import: for int8 a quantised one, unless the model is quantised."""
    if config.dtype != "int8" or is_quantized(prepared.model):
        return prepared.model
    if calibrate_dir is None:
        raise ConfigError("dtype=int8 needs the ranges of the calibrate stage, but got none")
    scheme = Scheme(config.quantization)
    return quantize_model(prepared.model, read_ranges(calibrate_dir), scheme, exclude)


def _converted_layers(
    layers: Sequence[Layer], converted: Conversion, skipped: Mapping[int, str]
) -> list[Layer]:
    """Return the layer table after conversion."""
    facts = layer_facts(converted.mod)
    rows = []
    for layer in layers:
        known = facts.get(layer.index)
        reason = skipped.get(layer.index) or converted.kept.get(layer.index, "")
        changed = dataclasses.asdict(known) if known else {}
        rows.append(dataclasses.replace(layer, **changed, skipped=bool(reason), reason=reason))
    return rows
