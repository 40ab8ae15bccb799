"""Stage 4: accuracy and latency of compiled models beside ONNX Runtime, in one process."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort

from tvmopt.config import EvaluateConfig
from tvmopt.errors import AccuracyError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Dataset, choose_dataset
from tvmopt.evaluate.latency import interleave
from tvmopt.evaluate.memory import peak_memory_mb
from tvmopt.evaluate.statistics import LatencySummary, summarise
from tvmopt.frontend.prepare import session_options
from tvmopt.runtime import CompiledModel, load
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.signature import Signature

TABLE_FILE = "comparison.csv"
CANDIDATE = "candidate"
UNTUNED = "untuned_tvm"
REFERENCE = "onnxruntime_fp32"
_BASELINE_ACCURACY_S = 5.0


def evaluate(
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
) -> StageResult:
    """Measure compiled models against each other and against ONNX Runtime on the same threads.

    Args:
        config: What to measure.
        convert_dir: Output of the convert stage; holds the float reference.
        bundles: Compiled models by label; must hold ``"candidate"``.
        out_dir: Gets the comparison table and the latency samples.
        progress: Called after every round.
        data: ``.npz`` or ``.npy`` file; without it random inputs are used, for fidelity only.

    Raises:
        ConfigError: When the data does not fit the model or the metric.
        AccuracyError: When the candidate's outputs have nothing to do with the float model's.
    """
    models = {label: load(folder) for label, folder in bundles.items()}
    candidate = models[CANDIDATE]
    signature = Signature.read(convert_dir)
    session = _session(convert_dir / REFERENCE_FILE, config.threads)
    names = [o.name for o in session.get_outputs()]

    def reference(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return session.run(names, inputs)

    progress(0, 100, "accuracy")
    dataset = choose_dataset(
        data,
        candidate.metadata.inputs,
        "evaluate",
        seed=1,
        random_kind=signature.random_inputs,
    )
    accuracies, reference_accuracy = _accuracies(config, models, reference, dataset)
    _refuse_nonsense(accuracies[CANDIDATE], signature.min_cosine)

    inputs = dataset.batch(0).inputs
    contenders: dict[str, Callable[[], object]] = {
        label: _bind(model, inputs) for label, model in models.items()
    }
    contenders[REFERENCE] = lambda: reference(inputs)
    samples = interleave(
        contenders,
        config.repeats,
        config.time_limit_s,
        lambda done, total: progress(10 + 90 * done // total, 100, "latency"),
    )
    latency = {label: summarise(values) for label, values in samples.items()}

    metrics = _candidate_metrics(latency, accuracies[CANDIDATE], bundles, dataset)
    tags: dict[str, str] = {
        "tvmopt.metric": accuracies[CANDIDATE].metric,
        "tvmopt.threads": str(config.threads),
        "tvmopt.data": str(data.name) if data else "random inputs: no data was given",
    }
    try:
        metrics["peak_memory_mb"] = peak_memory_mb(bundles[CANDIDATE])
    except Exception as error:  # the metric is replaced by the reason
        tags["tvmopt.unmeasured.peak_memory_mb"] = str(error)[:250]
    rows = _rows(latency, accuracies, reference_accuracy, bundles, convert_dir)
    _write(out_dir, rows, samples, accuracies)
    best = latency[CANDIDATE]
    return StageResult(
        metrics,
        tags,
        [
            f"{accuracies[CANDIDATE].metric} accuracy {accuracies[CANDIDATE].accuracy:.4f} on "
            f"{accuracies[CANDIDATE].samples} samples, drop {accuracies[CANDIDATE].drop:+.4f}",
            f"p50 {best.p50:.4g} ms, 95% interval {best.ci_low:.4g} to {best.ci_high:.4g}, "
            f"{config.threads} threads",
        ],
    )


def _bind(model: CompiledModel, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    return lambda: model(inputs)


def _session(path: Path, threads: int) -> ort.InferenceSession:
    options = session_options(str(path), threads)
    # Threads that go on spinning after a call would slow down whoever is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _accuracies(
    config: EvaluateConfig,
    models: dict[str, CompiledModel],
    reference: Callable[[dict[str, np.ndarray]], list[np.ndarray]],
    dataset: Dataset,
) -> tuple[dict[str, Accuracy], float]:
    if dataset.samples > config.max_samples:
        dataset = dataset.take(range(config.max_samples))
    meters = {
        label: AccuracyMeter(config.metric, dataset.labels is not None) for label in models
    }
    spent = dict.fromkeys(models, 0.0)
    for batch in dataset.batches():
        if 0 < config.accuracy_time_s < spent[CANDIDATE]:
            break
        expected = reference(batch.inputs)
        for label, model in models.items():
            # Untuned TVM computes the same numbers, but may need hours for all of the data.
            if label != CANDIDATE and spent[label] > _BASELINE_ACCURACY_S:
                meters.pop(label, None)
                continue
            start = time.perf_counter()
            outputs = model(batch.inputs)
            spent[label] += time.perf_counter() - start
            meters[label].add(outputs, expected, batch.labels, batch.valid, batch.padding)
    found = {label: meter.result() for label, meter in meters.items()}
    return found, found[CANDIDATE].reference


def _refuse_nonsense(accuracy: Accuracy, min_cosine: float) -> None:
    if accuracy.cosine < min_cosine:
        raise AccuracyError(
            f"the candidate's outputs must follow the float model's (cosine at least "
            f"{min_cosine:g}), but the cosine is {accuracy.cosine:.4f}; its latency was not "
            "measured"
        )


def _candidate_metrics(
    latency: dict[str, LatencySummary],
    accuracy: Accuracy,
    bundles: dict[str, Path],
    dataset: Dataset,
) -> dict[str, float]:
    own = latency[CANDIDATE]
    metrics = own.metrics()
    metrics["throughput_per_s"] = 1e3 * _rows_a_call(dataset) / own.p50
    metrics["accuracy"] = accuracy.accuracy
    metrics["accuracy_drop"] = accuracy.drop
    metrics["reference_accuracy"] = accuracy.reference
    metrics["cosine"] = accuracy.cosine
    metrics["max_abs_error"] = accuracy.max_abs_error
    if accuracy.agreement is not None:
        metrics["top1_agreement"] = accuracy.agreement
    metrics["library_bytes"] = float((bundles[CANDIDATE] / LIBRARY_FILE).stat().st_size)
    metrics["baseline_latency_ms_p50"] = latency[REFERENCE].p50
    metrics["speedup_vs_baseline"] = latency[REFERENCE].p50 / own.p50
    if UNTUNED in latency:
        metrics["untuned_latency_ms_p50"] = latency[UNTUNED].p50
        metrics["speedup_vs_untuned"] = latency[UNTUNED].p50 / own.p50
    return metrics


def _rows_a_call(dataset: Dataset) -> int:
    if not dataset.stacked:
        return dataset.batch_size
    first = dataset.specs[0].shape
    return first[0] if len(first) > 1 else 1


def _rows(
    latency: dict[str, LatencySummary],
    accuracies: dict[str, Accuracy],
    reference_accuracy: float,
    bundles: dict[str, Path],
    convert_dir: Path,
) -> list[dict[str, object]]:
    rows = []
    for label, own in latency.items():
        if label == REFERENCE:
            size = (convert_dir / REFERENCE_FILE).stat().st_size
            accuracy: float | None = reference_accuracy
        else:
            size = (bundles[label] / LIBRARY_FILE).stat().st_size
            known = accuracies.get(label)
            accuracy = known.accuracy if known else None
        untuned = latency.get(UNTUNED)
        rows.append(
            {
                "variant": label,
                "latency_ms_p50": own.p50,
                "latency_ms_ci_low": own.ci_low,
                "latency_ms_ci_high": own.ci_high,
                "samples": own.samples,
                "accuracy": accuracy,
                "bytes": size,
                "speedup_vs_onnxruntime": latency[REFERENCE].p50 / own.p50,
                "speedup_vs_untuned": untuned.p50 / own.p50 if untuned else None,
            }
        )
    return rows


def _write(
    out_dir: Path,
    rows: list[dict[str, object]],
    samples: dict[str, list[float]],
    accuracies: dict[str, Accuracy],
) -> None:
    with (out_dir / TABLE_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (out_dir / "latency_samples.json").write_text(
        json.dumps({label: [s * 1e3 for s in values] for label, values in samples.items()})
    )
    (out_dir / "accuracy.json").write_text(
        json.dumps({label: vars(a) for label, a in accuracies.items()}, indent=2)
    )


def read_table(folder: Path) -> list[dict[str, str]]:
    """Rows of the comparison table of an evaluate stage."""
    with (folder / TABLE_FILE).open(newline="") as file:
        return list(csv.DictReader(file))

