"""Stage 1: an ONNX model becomes a Relax module in the layout and number format asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import tvm

from tvmopt.compare import model_tolerance
from tvmopt.config import AUTO, ConvertConfig
from tvmopt.device import dtypes
from tvmopt.device.target import TargetSpec
from tvmopt.errors import (
    AccuracyError,
    ConfigError,
    ModelError,
    TvmoptError,
    in_one_line,
    last_line,
)
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import (
    Layer,
    Prepared,
    import_onnx,
    layer_table,
    load_onnx,
    parse_input_shapes,
    prepare,
)
from tvmopt.frontend.reference import (
    Arrays,
    Reference,
    input_specs,
    tolerance_for,
    working_random_inputs,
)
from tvmopt.quantize import Scheme, is_quantized, quantize_model
from tvmopt.random_inputs import KINDS
from tvmopt.runtime.bundle import write_golden
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.auto_layout import choose_layout
from tvmopt.stages.calibrate import read_ranges
from tvmopt.stages.check import (
    Criteria,
    Findings,
    Trial,
    check_conversion,
    compile_for_check,
    first_bad_layer,
)
from tvmopt.stages.module_files import (
    IMPORTED_FILE,
    QUANTIZED_FILE,
    REFERENCE_FILE,
    write_module,
    write_script,
)
from tvmopt.stages.non_finite import NON_FINITE_TAG, NonFinite, compare_non_finite
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.sensitivity import read_proposal
from tvmopt.stages.signature import Signature
from tvmopt.transform.conversion import Conversion, convert_module
from tvmopt.transform.layer_facts import layer_facts
from tvmopt.transform.layout import LayoutChange
from tvmopt.transform.plan import free_layouts
from tvmopt.transform.skip import parse_skip_layers, resolve_skip_layers

LAYERS_FILE = "layers.csv"
CHANGES_FILE = "layout_changes.csv"
_REAL_TRIALS = 2


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
        config: What is asked.
        model: The ONNX file.
        out_dir: Gets the files.
        progress: Called after each step.
        data: The user's data; the conversion is checked on some of its calibration part.
        calibrate_dir: Output of the calibrate stage; for int8, unless the model is quantised.
        sensitivity_dir: Output of the sensitivity stage; for ``skip_layers="auto"``.

    Raises:
        ConfigError, ModelError, UnsupportedOperatorError: The model cannot be converted as asked.
        AccuracyError: The module computes other numbers than ONNX Runtime; names the first layer
            that does.
    """
    start = time.perf_counter()
    target = TargetSpec.from_dict(config.target)
    progress(0, 5, "read")
    prepared = prepare(load_onnx(model), parse_input_shapes(config.input_shapes))
    reference = Reference(prepared.reference)
    specs = input_specs(prepared.reference)
    kind, trials = _trials(reference, specs, data)
    outputs = _output_specs(reference.output_names, trials[-1].expected)
    layers = layer_table(prepared.model)
    left_alone = _left_alone(config, layers)
    proposed = _proposed(config, sensitivity_dir)
    skipped = dict(sorted({**proposed, **left_alone}.items()))

    progress(1, 5, "quantise" if config.dtype == "int8" else "import")
    source = _quantised(config, prepared, [layers[i].name for i in skipped], calibrate_dir)
    imported = import_onnx(source, layers)

    progress(2, 5, "convert")

    def conversion_of(mod: tvm.IRModule, layout: str) -> Conversion:
        with _compiler(f"convert to {config.dtype} in {layout}"):
            return convert_module(
                mod,
                dtype=config.dtype,
                layout=layout,
                skip_layers=left_alone,
                keep_dtype=proposed,
            )

    conversions: dict[str, Conversion] = {}  # those that were compared are not made again

    def in_layout(layout: str) -> Conversion:
        if layout not in conversions:
            conversions[layout] = conversion_of(imported, layout)
        return conversions[layout]

    if config.layout == AUTO:
        with _compiler("compile in a layout"):
            layout = choose_layout(lambda layout: in_layout(layout).mod, target)
        config = dataclasses.replace(config, layout=layout)
        for conversion in conversions.values():
            free_layouts(conversion.mod, left_alone)
    converted = in_layout(config.layout)
    rows = _converted_layers(layers, converted, skipped)
    progress(3, 5, "compile check")
    criteria = _criteria(config, source)
    tags: dict[str, str] = {}
    findings: Findings | None = None
    non_finite: NonFinite | None = None
    exact = reference if source is prepared.model else Reference(source)
    if target.missing_on_host():
        tags["tvmopt.unchecked"] = f"target {target.device} does not run on this machine"
    else:
        with _compiler("compile"):
            run = compile_for_check(converted.mod, target)
        progress(4, 5, "check")
        try:
            findings = check_conversion(run, trials, reference.output_names, criteria, exact)
        except AccuracyError as error:
            if name := _with_nan(trials):
                raise AccuracyError(
                    f"{error}; the data holds NaN in input {name!r}: remove such samples"
                ) from error
            culprit = first_bad_layer(
                lambda tapped: conversion_of(import_onnx(tapped, layers), config.layout).mod,
                prepared.model,
                source,
                layers,
                next((t for t in reversed(trials) if t.real), trials[-1]),
                target,
                criteria.min_cosine,
            )
            raise AccuracyError(f"{error}; {culprit}") from error
        non_finite = compare_non_finite(
            run,
            exact,
            specs,
            reference.output_names,
            dtype=config.dtype,
            quantised=is_quantized(source),
            kind=kind,
        )

    golden = trials[-1]
    # What a conversion to another number format computes is what the library must reproduce.
    other = findings is not None and config.dtype != "float32"
    if findings is not None and other:
        expected = findings.outputs
    else:
        expected = golden.expected if exact is reference else exact(golden.inputs)
    params_bytes = write_module(out_dir, converted.mod)
    write_script(out_dir / IMPORTED_FILE, imported)
    onnx.save_model(prepared.reference, str(out_dir / REFERENCE_FILE))
    if source is not prepared.model:
        onnx.save_model(source, str(out_dir / QUANTIZED_FILE))
    _write_layers(out_dir / LAYERS_FILE, rows)
    _write_changes(out_dir / CHANGES_FILE, converted)
    write_golden(out_dir, golden.inputs, expected)
    Signature(
        inputs=specs,
        outputs=outputs,
        random_inputs=kind,
        tolerance=criteria.tolerance or model_tolerance(config.dtype),
        min_cosine=criteria.min_cosine,
        dtype=config.dtype,
    ).write(out_dir)
    progress(5, 5, "done")
    tags |= {"tvmopt.layout": config.layout, "tvmopt.dtype": config.dtype}
    if non_finite is not None:
        tags[NON_FINITE_TAG] = non_finite.tag
    metrics = _metrics(rows, converted, findings)
    metrics |= {"convert_s": time.perf_counter() - start, "params_bytes": float(params_bytes)}
    lines = _changed(config, prepared, rows, converted, findings, trials, params_bytes)
    if non_finite is not None:
        lines.append(non_finite.line)
    return StageResult(metrics, tags, lines)


@contextlib.contextmanager
def _compiler(what: str) -> Iterator[None]:
    """What the compiler's passes refuse as an error that says so."""
    try:
        yield
    except (TvmoptError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"the model must {what}, but the compiler says: {last_line(error)}; change the model, "
            "or export it with another opset"
        ) from error


def _trials(
    reference: Reference, specs: Sequence[TensorSpec], data: Path | None
) -> tuple[str, list[Trial]]:
    """Kind of random inputs, and what the conversion is checked on."""
    trials = []
    try:
        kind, inputs, outputs = working_random_inputs(reference, specs, seed=0)
        trials.append(Trial("random inputs", inputs, outputs, real=data is None))
    except ModelError:
        if data is None:
            raise
        kind = KINDS[0]  # never used: there is data
    if data is not None:
        dataset = load_dataset(data, specs).split("calibrate")
        # The first sample last: golden values are those of the last trial.
        for index in reversed(range(min(len(dataset), _REAL_TRIALS))):
            batch = dataset.batch(index).inputs
            _check_numbers(batch)
            try:
                trials.append(Trial("given inputs", batch, reference(batch), real=True))
            except Exception as error:
                raise ModelError(
                    f"the reference must run on the given data, but ONNX Runtime says: "
                    f"{in_one_line(error)}"
                ) from error
    return kind, trials


def _with_nan(trials: Sequence[Trial]) -> str:
    """Name of an input of which some trial holds NaN; empty where there is none."""
    for trial in trials:
        for name, array in trial.inputs.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                return name
    return ""


def _check_numbers(batch: Arrays) -> None:
    for name, array in batch.items():
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).any():
            raise ConfigError(
                f"data must hold numbers, but all of a sample of input {name!r} is NaN or "
                "infinite; check how the file was made"
            )


def _left_alone(config: ConvertConfig, layers: Sequence[Layer]) -> dict[int, str]:
    """Numbers of the layers that the user names, with the reason."""
    patterns = [p for p in parse_skip_layers(config.skip_layers) if p != AUTO]
    return resolve_skip_layers(layers, patterns)


def _proposed(config: ConvertConfig, sensitivity_dir: Path | None) -> dict[int, str]:
    """Numbers of the layers that are to keep their number format, with the reason."""
    if AUTO not in parse_skip_layers(config.skip_layers) or sensitivity_dir is None:
        return {}
    reason = "skip_layers: auto (sensitivity)"
    return dict.fromkeys(read_proposal(sensitivity_dir, config.dtype), reason)


def _quantised(
    config: ConvertConfig, prepared: Prepared, exclude: Sequence[str], calibrate_dir: Path | None
) -> onnx.ModelProto:
    """The model to import: for int8 the quantised one, unless it came quantised."""
    if config.dtype != "int8" or is_quantized(prepared.model):
        return prepared.model
    if calibrate_dir is None:
        raise ConfigError("dtype=int8 needs the ranges of the calibrate stage, but got none")
    scheme = Scheme(config.quantization)
    return quantize_model(prepared.model, read_ranges(calibrate_dir), scheme, exclude)


def _criteria(config: ConvertConfig, source: onnx.ModelProto) -> Criteria:
    if config.dtype == "float32" and config.layout == "NCHW":
        name = "the import"
    else:
        name = f"the conversion to {config.dtype} in {config.layout}"
    tolerance = None if config.dtype in dtypes.HALF_FLOATS else tolerance_for(source)
    return Criteria(name, tolerance, dtypes.dtype(config.dtype).min_cosine)


def _converted_layers(
    layers: Sequence[Layer], converted: Conversion, skipped: Mapping[int, str]
) -> list[Layer]:
    """The layer table after conversion."""
    facts = layer_facts(converted.mod)
    rows = []
    for layer in layers:
        known = facts.get(layer.index)
        reason = skipped.get(layer.index) or converted.kept.get(layer.index, "")
        changed = dataclasses.asdict(known) if known else {}
        rows.append(dataclasses.replace(layer, **changed, skipped=bool(reason), reason=reason))
    return rows


def _output_specs(names: Sequence[str], outputs: Sequence[np.ndarray]) -> tuple[TensorSpec, ...]:
    specs = []
    for name, output in zip(names, outputs, strict=True):
        if output.dtype.kind not in "fiub":
            raise ModelError(
                f"model outputs must be numeric tensors, but {name!r} holds {output.dtype}; "
                "remove it from the model"
            )
        specs.append(TensorSpec(name, tuple(output.shape), str(output.dtype)))
    return tuple(specs)


def _metrics(
    rows: Sequence[Layer], converted: Conversion, findings: Findings | None
) -> dict[str, float]:
    metrics = {
        "layers": float(len(rows)),
        "layers_skipped": float(sum(row.skipped for row in rows)),
        "layout_changes": float(len(converted.layout_changes)),
        "layout_change_bytes": float(converted.layout_change_bytes),
    }
    if findings is not None:
        metrics["cosine_vs_float"] = findings.cosine
        if findings.deviation is not None:
            metrics["import_max_deviation"] = findings.deviation
    flops = [row.flops for row in rows]
    if flops and all(f is not None for f in flops):
        metrics["flops"] = float(sum(f for f in flops if f is not None))
    return metrics


def _changed(
    config: ConvertConfig,
    prepared: Prepared,
    rows: Sequence[Layer],
    converted: Conversion,
    findings: Findings | None,
    trials: Sequence[Trial],
    params_bytes: int,
) -> list[str]:
    nodes = len(prepared.reference.graph.node), len(prepared.model.graph.node)
    lines = [
        f"prepared: {nodes[0]} -> {nodes[1]} ONNX nodes",
        f"imported: {len(rows)} layers, {params_bytes / 1e6:.1f} MB of weights",
    ]
    if config.dtype != "float32":
        of_dtype = sum(row.dtype == config.dtype for row in rows)
        lines.append(f"{config.dtype}: {of_dtype} of {len(rows)} layers")
    if config.layout != "NCHW":
        count, size = len(converted.layout_changes), converted.layout_change_bytes / 1e6
        laid_out = sum(row.layout == config.layout for row in rows)
        convs = sum(bool(row.layout) for row in rows)
        lines.append(
            f"{config.layout}: {laid_out} of {convs} convolutions, {count} layout change(s) of "
            f"{size:.2f} MB"
        )
    if any(row.skipped for row in rows):
        shown = [f"{row.index} {row.name} ({row.reason})" for row in rows if row.skipped]
        more = f", and {len(shown) - 3} more" if len(shown) > 3 else ""
        lines.append(f"kept: {', '.join(shown[:3])}{more}")
    if findings is None:
        lines.append("not checked: the target does not run on this machine")
    else:
        where = " and ".join(dict.fromkeys(trial.what for trial in trials))
        worst = "" if findings.deviation is None else f"largest deviation {findings.deviation:.2g}"
        against = "" if config.dtype == "float32" else f"cosine {findings.cosine:.5f} with float"
        lines.append(f"checked on {where}: {', '.join(filter(None, (worst, against)))}")
    return lines


def _write_layers(path: Path, rows: Sequence[Layer]) -> None:
    with path.open("w", newline="") as file:
        write_csv(file, [f.name for f in dataclasses.fields(Layer)], map(dataclasses.astuple, rows))


def _write_changes(path: Path, converted: Conversion) -> None:
    with path.open("w", newline="") as file:
        fields = [f.name for f in dataclasses.fields(LayoutChange)]
        write_csv(file, fields, map(dataclasses.astuple, converted.layout_changes))
