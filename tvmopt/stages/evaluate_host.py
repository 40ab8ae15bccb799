"""Evaluate compiled models on this machine's CPU or GPU: accuracy, latency, memory, cold start."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tvmopt.config import EvaluateConfig
from tvmopt.device import cuda_runtime
from tvmopt.digest import sha256_file
from tvmopt.evaluate.fresh_process import measure_fresh_process
from tvmopt.evaluate.statistics import summarise
from tvmopt.runtime import load
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.compared_accuracy import compare_accuracy
from tvmopt.stages.comparison_table import CANDIDATE, table_rows, write_table
from tvmopt.stages.evaluate_report import (
    FRESH_PROCESS_METRICS,
    REFERENCE_COLD_START,
    accuracy_tags,
    candidate_metrics,
    sentences,
    unmeasured_tag,
)
from tvmopt.stages.evaluation_data import evaluation_data, rows_a_call
from tvmopt.stages.float_session import bound_reference, float_reference
from tvmopt.stages.host_latency import compiled_share, gpu_metrics, time_calls, time_mix
from tvmopt.stages.kept_outputs import with_kept_outputs
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.signature import Signature
from tvmopt.stages.size_latency import SIZES_SERIES, latency_of_sizes, mixed_calls

_ONCE = "the same in all trials: trial 0 and the last round of the search measure it"


def evaluate_on_host(
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None,
    torch_source: Path | None,
    on_gpu: bool,
) -> StageResult:
    """Measure accuracy and latency on this machine, in one process with ONNX Runtime.

    Arguments and errors: :func:`tvmopt.stages.evaluate.evaluate`; and ``on_gpu``, whether the
    models are for a GPU.
    """
    models = {label: load(folder) for label, folder in bundles.items()}
    signature = Signature.read(convert_dir)
    reference = float_reference(convert_dir, config.threads)
    progress(0, 100, "accuracy")
    dataset = evaluation_data(data, signature.inputs, signature.random_inputs)
    metric = asked_metric(config, signature.outputs, dataset)
    coded = {label: model.coded for label, model in models.items()}
    expected = with_kept_outputs(reference, sha256_file(convert_dir / REFERENCE_FILE))
    accuracies = compare_accuracy(
        metric,
        coded,
        expected,
        dataset,
        signature,
        most_samples=config.max_samples,
        time_limit_s=config.accuracy_time_s,
    )
    accuracy = accuracies[CANDIDATE]

    bind = functools.partial(bound_reference, threads=config.threads)
    of_sizes = bundles[CANDIDATE], convert_dir, bind
    calls_a_sample, rows = 1, float(rows_a_call(dataset))
    if config.size_mix:
        mixed = mixed_calls(config, models, *of_sizes)
        calls_a_sample, rows = mixed.calls, mixed.rows
        timed = time_mix(config, mixed, progress)
    else:
        inputs = dataset.batch(0).inputs
        timed = time_calls(config, models, reference, inputs, on_gpu, torch_source, progress)
    latency = {label: summarise(values) for label, values in timed.samples.items()}

    metrics = candidate_metrics(latency, accuracy, bundles, rows)
    tags = accuracy_tags(config, accuracy, data)
    for label, why in timed.missing.items():
        tags |= unmeasured_tag(f"{label}_latency_ms_p50", why)
    where = f"{config.threads} threads"
    if on_gpu:
        where = cuda_runtime.describe()
        metrics |= gpu_metrics(models[CANDIDATE], timed.candidate, config, rows_a_call(dataset))
        tags |= {
            "tvmopt.gpu": where,
            "tvmopt.latency_of": "one call by the GPU's clock, inputs and outputs staying there",
            "tvmopt.baseline": f"ONNX Runtime on the CPU, {config.threads} threads",
            "tvmopt.memory_of": "the GPU's memory that the model takes in a separate process",
        }
    if config.size_mix:
        tags["tvmopt.latency_of"] = f"mean call of rounds of {calls_a_sample}: {config.size_mix}"
        where += f", mean of {calls_a_sample} calls: {config.size_mix}"
    if models[CANDIDATE].metadata.segments:
        metrics["time_compiled_share"] = compiled_share(timed.candidate)
    in_fresh_process, why_missing = _fresh_process(config, convert_dir, bundles[CANDIDATE])
    metrics |= in_fresh_process
    tags |= why_missing
    rows_of_table = table_rows(latency, accuracies, accuracy.reference, bundles, convert_dir)
    write_table(out_dir, rows_of_table, timed.samples, accuracies)
    changed = sentences(accuracy, latency[CANDIDATE], where)
    series = latency_of_sizes(config, models[CANDIDATE], *of_sizes)
    if series:
        changed.append(f"{len(series[SIZES_SERIES])} sizes, each measured on its golden inputs")
    return StageResult(metrics, tags, changed, series)


def _fresh_process(
    config: EvaluateConfig, convert_dir: Path, bundle: Path
) -> tuple[dict[str, float], dict[str, str]]:
    """Return memory and cold start in a new process, and the tags of the metrics that lack."""
    reference_file = convert_dir / REFERENCE_FILE if config.starts_reference else None
    try:
        metrics = measure_fresh_process(bundle, reference_file, config.threads)
    except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
        tags: dict[str, str] = {}
        for name in FRESH_PROCESS_METRICS:
            tags |= unmeasured_tag(name, str(error))
        return {}, tags
    return metrics, unmeasured_tag(REFERENCE_COLD_START, _ONCE) if reference_file is None else {}
