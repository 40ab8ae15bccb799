"""Convert stage: ONNX model to a checked Relax module in a layout and a dtype."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import tvm

from tvmopt.choices import AUTO
from tvmopt.config import ConvertConfig
from tvmopt.device.target import TargetSpec
from tvmopt.errors import AccuracyError, ConfigError
from tvmopt.frontend import Imported, Layer
from tvmopt.frontend.given_sizes import GivenSizes, parse_given_sizes
from tvmopt.frontend.trees.thresholds import round_thresholds
from tvmopt.quantize import is_quantized, quantize_model, scheme_for
from tvmopt.runtime.bundle import write_golden
from tvmopt.runtime.sizes import EXACT, PADDED, ROWS, SizeDimension
from tvmopt.stages.calibrate import read_ranges
from tvmopt.stages.check import Findings
from tvmopt.stages.convert_check import Check
from tvmopt.stages.convert_module import (
    FindSlower,
    Importer,
    Made,
    Skipped,
    SourceOf,
    converted_module,
)
from tvmopt.stages.convert_report import (
    SEGMENTS_TAG,
    conversion_lines,
    conversion_metrics,
    segment_tags,
    write_changes,
    write_layers,
)
from tvmopt.stages.convert_sizes import find_dimensions
from tvmopt.stages.float_model import FloatModel, read_float_model
from tvmopt.stages.layer_dtypes import resolve_layer_dtypes, with_biases_of_map
from tvmopt.stages.module_files import (
    IMPORTED_FILE,
    QUANTIZED_FILE,
    REFERENCE_FILE,
    write_module,
    write_script,
)
from tvmopt.stages.non_finite import NON_FINITE_TAG, NonFinite
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.size_folders import keep_what_differs, size_folder, write_dimensions
from tvmopt.stages.size_reference import drop_shared_weights
from tvmopt.stages.slower_layers import slower_finder
from tvmopt.transform.conversion import Conversion
from tvmopt.transform.layer_facts import layer_facts

LAYERS_FILE = "layers.csv"
CHANGES_FILE = "layout_changes.csv"
#: Tag with the layout that was chosen.
LAYOUT_TAG = "tvmopt.layout"


def convert(
    config: ConvertConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    calibrate_dir: Path | None = None,
    sensitivity_dir: Path | None = None,
) -> StageResult:
    """Read, prepare, quantise, import, convert and check a model, in every size asked for.

    Writes the module and its weights, the IR as imported, the quantised ONNX model if there is one,
    the float reference with fixed shapes, the layer table, the layout changes, the signature, and
    golden inputs and outputs (of the data when there is data). Each further size has the same files
    in its own folder (:mod:`~tvmopt.stages.size_folders`).

    Args:
        config: Configuration of the stage.
        model: The ONNX file.
        out_dir: Folder for the files.
        progress: Called after each step.
        data: The user's data; the conversion is checked on some of its calibration part.
        calibrate_dir: Output of the calibrate stage; for int8, unless the model is quantised.
        sensitivity_dir: Output of the sensitivity stage; for ``skip_layers`` or ``dtype="auto"``.

    Raises:
        ConfigError, ModelError, UnsupportedOperatorError: The model cannot be converted so.
        AccuracyError: The module's outputs differ from ONNX Runtime's; names the first bad layer.
    """
    start = time.perf_counter()
    given = parse_given_sizes(config.input_shapes)
    folders = [size_folder(out_dir, number) for number in range(len(given.sizes))]
    found: StageResult | None = None
    slower: dict[int, str] | None = None
    for number, (size, folder) in enumerate(zip(given.sizes, folders, strict=True)):
        folder.mkdir(parents=True, exist_ok=True)
        layout = config.layout if found is None else found.tags[LAYOUT_TAG]
        own = dataclasses.replace(config, input_shapes=size.text, layout=layout)
        told = _part(progress, number, len(folders))
        files = model, folder, told, data, calibrate_dir, sensitivity_dir
        # The build stage checks every size. Segments and low precision need the results here.
        is_checked = config.may_lose_accuracy or (
            config.is_checked if found is None else SEGMENTS_TAG in found.tags
        )
        made = functools.partial(
            _convert_size, own, *files, is_largest=found is None, is_only=len(folders) == 1
        )
        result, slower = made(is_checked=is_checked, slower=slower)
        if found is None and SEGMENTS_TAG in result.tags and not is_checked:
            result, slower = made(is_checked=True, slower=slower)
        found = found or result
    assert found is not None
    if len(folders) == 1:
        return found
    dimensions = find_dimensions(given, folders)
    write_dimensions(out_dir, dimensions)
    for folder in folders[1:]:
        keep_what_differs(folder, out_dir)
        drop_shared_weights(folder, out_dir)
    found.metrics["convert_s"] = time.perf_counter() - start
    found.metrics["sizes"] = float(len(folders))
    found.changed.extend(_in_words(given, dimensions))
    return found


def _part(progress: Progress, number: int, count: int) -> Progress:
    """Return the progress of one of several conversions."""

    def told(done: int, total: int, what: str) -> None:
        label = f"{what}, size {number + 1} of {count}" if count > 1 else what
        progress(number * total + done, count * total, label)

    return told


def _in_words(given: GivenSizes, dimensions: Sequence[SizeDimension]) -> list[str]:
    """Return a line for the sizes, and one for each dimension."""
    lines = [f"{len(given.sizes)} sizes in one library"]
    for number, one in enumerate(dimensions):
        values = sorted({size.values[number] for size in given.sizes})
        how = {
            ROWS: "calls of any number of rows are divided among them",
            PADDED: "other sizes are padded with zeros, which the outputs do not depend on",
            EXACT: f"other sizes are refused; it {one.reason}",
        }[one.handling]
        lines.append(f"{one.name}: {', '.join(map(str, values))}; {how}")
    return lines


def _convert_size(
    config: ConvertConfig, model: Path, out_dir: Path, progress: Progress, data: Path | None,
    calibrate_dir: Path | None, sensitivity_dir: Path | None, is_largest: bool, is_checked: bool,
    is_only: bool, slower: Mapping[int, str] | None,
) -> tuple[StageResult, dict[int, str]]:  # fmt: skip
    """Convert the model in one size.

    Args:
        config: Configuration of the size.
        model: As of :func:`convert`, and so are the others.
        out_dir: Folder of the size.
        progress: Called after each step.
        data: The user's data, which must fit the largest size only.
        calibrate_dir: Output of the calibrate stage.
        sensitivity_dir: Output of the sensitivity stage.
        is_largest: Whether it is the largest size.
        is_checked: Whether to compile and run the module here.
        is_only: Whether the model has no other size; the build stage may then take the library.
        slower: Layers that keep float32 since it is faster, as found for the largest size; None to
            find them.

    Returns:
        The result, and the layers that keep float32 since it is faster, with reasons.
    """
    start = time.perf_counter()
    target = TargetSpec.from_dict(config.target)
    progress(0, 5, "read")
    read = read_float_model(model, config.input_shapes, data, is_largest=is_largest)
    is_auto = config.dtype == AUTO
    came_quantised = is_quantized(read.prepared.model)
    config, skipped = resolve_layer_dtypes(config, read.layers, came_quantised, sensitivity_dir)
    decided = is_auto or came_quantised
    find_slower = None
    if not decided and slower is None:
        find_slower = slower_finder(config, read.prepared.model, read.layers, skipped)
    skipped = skipped.with_slower(slower or {})

    progress(1, 5, "quantise" if config.dtype == "int8" else "import")
    source_of = _sources(config, read, target, calibrate_dir, sensitivity_dir if is_auto else None)
    import_ = Importer(read.layers, config, target, is_checked)
    keep_in = out_dir if is_only and not import_.is_foreign else None
    made, check, findings = _checked(
        config, import_, read, source_of, skipped, target, progress, keep_in, find_slower
    )
    parted, config, source = made.parted, made.config, made.source
    slower = {
        **(slower or {}),
        **{i: why for i, why in made.skipped.reasons.items() if i not in skipped.reasons},
    }
    converted = made.conversions(config.layout)
    tags = {LAYOUT_TAG: config.layout, "tvmopt.dtype": config.computed_dtype}
    if config.dtype_map:
        tags["tvmopt.dtype_map"] = str(config.dtype_map)
    non_finite: NonFinite | None = None
    unproven = _unproven(import_, made, target)
    if unproven:
        tags["tvmopt.unchecked"] = unproven
    elif made.run is not None:
        non_finite = check.non_finite(made.run)

    apart = _in_segments(read.layers, parted)
    rows = _converted_layers(read.layers, converted, {**apart, **made.skipped.reasons})
    params_bytes = write_module(out_dir, converted.mod)
    write_script(out_dir / IMPORTED_FILE, parted.mod)
    onnx.save_model(read.prepared.reference, str(out_dir / REFERENCE_FILE))
    if source is not read.prepared.model:
        onnx.save_model(source, str(out_dir / QUANTIZED_FILE))
    write_layers(out_dir / LAYERS_FILE, rows)
    write_changes(out_dir / CHANGES_FILE, converted)
    own = None if import_.is_foreign else findings
    signature = check.signature(own)
    write_golden(out_dir, read.trials[-1].inputs, check.golden_outputs(own, signature))
    signature.write(out_dir)
    progress(5, 5, "done")
    if non_finite is not None:
        tags[NON_FINITE_TAG] = non_finite.tag
    tags |= segment_tags(parted.segments)
    metrics = conversion_metrics(rows, converted, findings, apart)
    metrics |= {"convert_s": time.perf_counter() - start, "params_bytes": float(params_bytes)}
    lines = conversion_lines(config, read, rows, converted, findings, params_bytes)
    if unproven:
        lines.append(f"not proven: {unproven}")
    lines += [segment.line for segment in parted.segments]
    if non_finite is not None:
        lines.append(non_finite.line)
    return StageResult(metrics, tags, lines), slower


def _checked(
    config: ConvertConfig, import_: Importer, read: FloatModel, source_of: SourceOf,
    skipped: Skipped, target: TargetSpec, progress: Progress, keep_in: Path | None,
    find_slower: FindSlower | None,
) -> tuple[Made, Check, Findings | None]:  # fmt: skip
    """Convert the model, and compare it with ONNX Runtime where this machine can run it.

    A float32 module that is wrong is made again, with more of its nodes in ONNX Runtime.
    """
    how = source_of, skipped, target, progress, keep_in, find_slower
    made = converted_module(config, import_, *how)
    source, layout = made.source, made.config.layout
    check = Check(read, source, config.computed_dtype, layout, has_halves=bool(skipped.halves))
    if made.run is None or import_.checked_on is None:
        return made, check, None
    progress(4, 5, "check")

    def convert_tapped(tapped: onnx.ModelProto) -> tvm.IRModule:
        return made.conversions.convert(import_(tapped).mod, layout).mod

    try:
        return made, check, check(made.run, convert_tapped, import_.checked_on)
    except AccuracyError as error:
        if config.dtype != "float32" or not import_.leave_out_more(source, error):
            raise import_.with_first_error(error) from error.__cause__
    return _checked(config, import_, read, *how)


def _unproven(import_: Importer, made: Made, target: TargetSpec) -> str:
    """Return what the check does not show about another machine's target; empty for this one's."""
    if not import_.is_foreign:
        return ""
    elsewhere = f"{target.device} does not run on this machine"
    if made.run is None:
        return f"{elsewhere}, and {made.unchecked or 'the conversion was not checked'}"
    return f"{elsewhere}: its CPU checked the conversion, but the kernels are compiled anew"


def _in_segments(layers: Sequence[Layer], parted: Imported) -> dict[int, str]:
    """Return the layers that ONNX Runtime runs, by index, with the reason."""
    names = {name for segment in parted.segments for name in segment.nodes}
    return {layer.index: "runs in ONNX Runtime" for layer in layers if layer.name in names}


def _sources(
    config: ConvertConfig,
    read: FloatModel,
    target: TargetSpec,
    calibrate_dir: Path | None,
    chosen_in: Path | None,
) -> SourceOf:
    """Return the function that makes the model to import: for int8 a quantised one.

    A model that came quantised stays as it is.

    Args:
        config: Configuration of the stage, with the dtype of the whole model.
        read: The float model.
        target: The target of the configuration.
        calibrate_dir: Output of the calibrate stage.
        chosen_in: Output of the sensitivity stage that chose the dtypes; None without such a
            choice.
    """

    def source(skipped: Skipped) -> onnx.ModelProto:
        model = read.prepared.model
        if config.dtype == "int8" and not is_quantized(model):
            if calibrate_dir is None:
                raise ConfigError(
                    "dtype=int8 needs the ranges of the calibrate stage, but got none"
                    "; run calibrate first"
                )
            ranges = read_ranges(calibrate_dir)
            if chosen_in is not None:
                ranges = with_biases_of_map(
                    ranges, read.layers, skipped.halves, chosen_in, config.dtype_map
                )
            exclude = [read.layers[i].name for i in {**skipped.reasons, **skipped.halves}]
            scheme = scheme_for(config.quantization, target.arch())
            model = quantize_model(model, ranges, scheme, exclude)
        return round_thresholds(model, config.thresholds)

    return source


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
