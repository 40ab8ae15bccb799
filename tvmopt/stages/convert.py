"""Stage 1: an ONNX model becomes a Relax module that computes the same numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax

from tvmopt.arch.target import TargetSpec, set_thread_environment
from tvmopt.build import build_library
from tvmopt.config import ConvertConfig
from tvmopt.errors import AccuracyError, ModelError
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.layers import Layer
from tvmopt.frontend.reference import (
    Arrays,
    Reference,
    check_outputs,
    input_specs,
    tolerance_for,
    working_random_inputs,
)
from tvmopt.random_inputs import KINDS
from tvmopt.runtime.bundle import write_golden
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.stages.module_files import REFERENCE_FILE, write_module
from tvmopt.stages.result import Progress, StageResult
from tvmopt.transform.lower import lower

SIGNATURE_FILE = "signature.json"
LAYERS_FILE = "layers.csv"


def convert(
    config: ConvertConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
) -> StageResult:
    """Read, prepare, import and check a model.

    Writes the module and its weights, the float reference with fixed shapes, the layer table, the
    signature, and golden inputs and outputs (of the data's first batch when there is data).

    Raises:
        ConfigError, ModelError, UnsupportedOperatorError: The model cannot be converted as asked.
        AccuracyError: The module computes other numbers than ONNX Runtime.
    """
    start = time.perf_counter()
    target = TargetSpec.from_dict(config.target)
    progress(0, 4, "read")
    prepared = prepare(load_onnx(model), parse_input_shapes(config.input_shapes))
    reference = Reference(prepared.reference)
    specs = input_specs(prepared.reference)
    kind, trials = _trials(reference, specs, data)
    tolerance = tolerance_for(prepared.reference)
    signature = {
        "inputs": specs,
        "outputs": _output_specs(reference.output_names, trials[0][2]),
    }

    progress(1, 4, "import")
    module = import_onnx(prepared.model)
    params_bytes = write_module(out_dir, module)
    layers = layer_table(prepared.model)
    _write_layers(out_dir / LAYERS_FILE, layers)
    onnx.save_model(prepared.reference, str(out_dir / REFERENCE_FILE))
    _write_signature(out_dir / SIGNATURE_FILE, signature, kind, tolerance)
    write_golden(out_dir, *trials[-1][1:])

    progress(2, 4, "compile check")
    lowered = lower(module, target.to_tvm())
    worst = 0.0
    checked_on = []
    if target.missing_on_host():
        tags = {"tvmopt.unchecked": f"target {target.mcpu} does not run on this machine"}
    else:
        tags = {}
        run = _compiled(lowered, target)
        progress(3, 4, "check")
        for what, batch, expected in trials:
            got = run(list(batch.values()))
            names = reference.output_names
            error = check_outputs(got, expected, names, f"the import on {what}", tolerance)
            worst = max(worst, error)
            checked_on.append(what)
    progress(4, 4, "done")

    flops = [layer.flops for layer in layers]
    metrics = {
        "convert_s": time.perf_counter() - start,
        "params_bytes": float(params_bytes),
        "layers": float(len(layers)),
    }
    if checked_on:
        metrics["import_max_deviation"] = worst
    if flops and all(f is not None for f in flops):
        metrics["flops"] = float(sum(f for f in flops if f is not None))
    nodes = len(prepared.reference.graph.node), len(prepared.model.graph.node)
    return StageResult(
        metrics,
        tags,
        [
            f"prepared: {nodes[0]} -> {nodes[1]} ONNX nodes",
            f"imported: {len(layers)} layers, {params_bytes / 1e6:.1f} MB of weights",
            f"checked on {' and '.join(checked_on)}: largest deviation {worst:.2g}"
            if checked_on
            else "not checked: the target does not run on this machine",
        ],
    )


def read_signature(folder: Path) -> dict[str, tuple[TensorSpec, ...]]:
    """Inputs and outputs of a converted model, in ONNX order."""
    data = json.loads((folder / SIGNATURE_FILE).read_text())
    return {
        side: tuple(TensorSpec(t["name"], tuple(t["shape"]), t["dtype"]) for t in data[side])
        for side in ("inputs", "outputs")
    }


def read_tolerance(folder: Path) -> float:
    """Largest deviation from the float model that is allowed for a converted model."""
    return float(json.loads((folder / SIGNATURE_FILE).read_text())["tolerance"])


def read_random_kind(folder: Path) -> str:
    """Kind of random inputs that the float model of a converted model accepts."""
    return str(json.loads((folder / SIGNATURE_FILE).read_text())["random_inputs"])


def _trials(
    reference: Reference, specs: tuple[TensorSpec, ...], data: Path | None
) -> tuple[str, list[tuple[str, Arrays, list[np.ndarray]]]]:
    """Kind of random inputs, and what the import is checked on: name, inputs, expected outputs."""
    trials = []
    try:
        kind, inputs, outputs = working_random_inputs(reference, specs, seed=0)
        trials.append(("random inputs", inputs, outputs))
    except ModelError:
        if data is None:
            raise
        kind = KINDS[0]  # never used: there is data
    if data is not None:
        batch = load_dataset(data, specs).batch(0).inputs
        try:
            trials.append(("given inputs", batch, reference(batch)))
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"the reference must run on the given data, but ONNX Runtime says: {reason}"
            ) from error
    return kind, trials


def _output_specs(names: list[str], outputs: list[np.ndarray]) -> tuple[TensorSpec, ...]:
    specs = []
    for name, output in zip(names, outputs, strict=True):
        if output.dtype.kind not in "fiub":
            raise ModelError(
                f"model outputs must be numeric tensors, but {name!r} holds {output.dtype}; "
                "remove it from the model"
            )
        specs.append(TensorSpec(name, tuple(output.shape), str(output.dtype)))
    return tuple(specs)


def _write_signature(
    path: Path,
    signature: dict[str, tuple[TensorSpec, ...]],
    random_kind: str,
    tolerance: float,
) -> None:
    data: dict[str, object] = {
        side: [dataclasses.asdict(t) for t in specs] for side, specs in signature.items()
    }
    data["random_inputs"] = random_kind
    data["tolerance"] = tolerance
    path.write_text(json.dumps(data, indent=2))


def _write_layers(path: Path, layers: list[Layer]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in dataclasses.fields(Layer)])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(layer) for layer in layers)


def _compiled(
    lowered: tvm.IRModule, target: TargetSpec
) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Compile with the default schedules and return a function from arrays to arrays."""
    set_thread_environment(target.threads)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        path = Path(folder) / "check.so"
        build_library(lowered, target, path)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        try:
            result = machine["main"](*(tvm.runtime.tensor(a) for a in arrays))
        except Exception as error:
            raise AccuracyError(f"the import must run, but it failed: {error}") from error
        items = [result] if hasattr(result, "numpy") else list(result)
        return [item.numpy() for item in items]

    return run
