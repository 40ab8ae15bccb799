"""Stage 4: measure accuracy and latency of compiled models.

On this machine's CPU or GPU, the models and ONNX Runtime run in one process. A board runs the
models alone, through TVM's RPC. If neither can run them, tags give the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tvmopt.config import EvaluateConfig
from tvmopt.device import cuda_runtime
from tvmopt.device.target import TargetSpec
from tvmopt.errors import AccuracyError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Dataset, choose_dataset
from tvmopt.evaluate.drop_interval import interval_words
from tvmopt.evaluate.fresh_process import measure_fresh_process
from tvmopt.evaluate.gpu_latency import interleave_on_gpu, seconds_in_a_row
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.evaluate.latency import calls_within, collect_interleaved, interleave
from tvmopt.evaluate.statistics import LatencySummary, summarise
from tvmopt.frontend.prepare import session_options
from tvmopt.metrics.metric import Metric
from tvmopt.remote import Board
from tvmopt.remote.model import RemoteModel, describe
from tvmopt.remote.session import open_session
from tvmopt.runtime import CompiledModel, ModelMetadata, load
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.runtime.segments import seconds_in_segments
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.comparison_table import (
    CANDIDATE,
    REFERENCE,
    UNTUNED,
    table_row,
    table_rows,
    write_table,
)
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.signature import Signature
from tvmopt.stages.size_latency import SIZES_SERIES, latency_of_sizes, mixed_calls
from tvmopt.stages.torch_peer import TORCH_PEERS, time_torch_compile

if TYPE_CHECKING:
    import onnxruntime as ort

_BASELINE_ACCURACY_S = 5.0
_BOARD_ACCURACY_S = 120.0
_COPYING_REPEATS = 50
_SHARE_REPEATS = 20
_UNMEASURED = "tvmopt.unmeasured."
# Metrics that a child process measures.
_OF_REFERENCE = "baseline_cold_start_ms"
_OF_PROCESS = ("peak_memory_mb", "cold_start_ms", _OF_REFERENCE)
_ONCE = "the same in all trials: trial 0 and the last round of the search measure it"


def evaluate(
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    torch_source: Path | None = None,
) -> StageResult:
    """Measure compiled models against each other and against ONNX Runtime on the same threads.

    A model for a GPU is timed on this machine's GPU, and ONNX Runtime on the CPU.

    Args:
        config: What to measure, and the board, if any.
        convert_dir: Output of the convert stage; holds the float reference.
        bundles: Compiled models by label; must hold ``"candidate"``.
        out_dir: Directory for the comparison table and the latency samples.
        progress: Called after every round.
        data: ``.npz`` or ``.npy`` file; without it random inputs are used, for fidelity only.
        torch_source: How to load the source model of PyTorch, which torch.compile runs on the GPU;
            None for none.

    Raises:
        ConfigError: When the data does not fit the model or the metric, or there is no such board.
        AccuracyError: When the candidate's outputs do not follow the float model's, or, on a board,
            do not match the golden outputs.
        ArtifactError, LimitError: When the board refuses a library, or takes too long.
    """
    board = Board.parse(config.rpc_tracker, config.rpc_key)
    if board is not None:
        return _evaluate_on(board, config, convert_dir, bundles, out_dir, progress, data)
    target = TargetSpec.from_dict(ModelMetadata.read(bundles[CANDIDATE]).target)
    on_gpu = target.gpu is not None
    if lacking := target.why_unmeasured():
        progress(100, 100, "nothing to measure")
        return _unmeasured(
            lacking,
            "evaluate it on a machine with that GPU"
            if on_gpu
            else "give rpc_tracker and rpc_key of a board",
            bundles,
            out_dir,
        )
    models = {label: load(folder) for label, folder in bundles.items()}
    signature = Signature.read(convert_dir)
    reference = _reference(convert_dir, config.threads)
    progress(0, 100, "accuracy")
    dataset = _dataset(data, signature)
    metric = asked_metric(config, signature, dataset)
    accuracies, reference_accuracy = _accuracies(
        config,
        metric,
        {label: model.coded for label, model in models.items()},
        reference,
        dataset,
        signature,
    )
    _refuse_nonsense(accuracies[CANDIDATE], signature.min_cosine)

    inputs = dataset.batch(0).inputs
    calls: dict[str, Callable[[], object]] = {
        label: functools.partial(model, inputs) for label, model in models.items()
    }
    onnxruntime: dict[str, Callable[[], object]] = {REFERENCE: functools.partial(reference, inputs)}
    bind = functools.partial(_bound_reference, threads=config.threads)
    of_sizes = bundles[CANDIDATE], convert_dir, bind
    calls_a_sample, rows_a_call = 1, float(_rows_a_call(dataset))
    if config.size_mix:
        mixed = mixed_calls(config, models, *of_sizes)
        calls_a_sample, rows_a_call = mixed.calls, mixed.rows
        calls = {label: call for label, call in mixed.rounds.items() if label != REFERENCE}
        onnxruntime = {REFERENCE: mixed.rounds[REFERENCE]}

    def told(done: int, total: int) -> None:
        progress(10 + 90 * done // total, 100, "latency")

    limits = config.repeats, config.time_limit_s
    if on_gpu and not config.size_mix:
        for call in calls.values():
            call()  # so that the inputs are on the GPU
        bare = {label: model.gpu_seconds for label, model in models.items()}
        samples = interleave_on_gpu(bare, onnxruntime, *limits, told)
    else:
        rounds = interleave({**calls, **onnxruntime}, *limits, told)
        samples = {name: [s / calls_a_sample for s in found] for name, found in rounds.items()}
    missing: dict[str, str] = {}
    if torch_source is not None and on_gpu and not config.size_mix:
        progress(100, 100, "torch.compile")
        of_torch, missing = time_torch_compile(torch_source, inputs)
        samples |= of_torch
    latency = {label: summarise(values) for label, values in samples.items()}

    metrics = _candidate_metrics(latency, accuracies[CANDIDATE], bundles, rows_a_call)
    tags = _tags(config, accuracies[CANDIDATE], data)
    tags |= {f"{_UNMEASURED}{name}_latency_ms_p50": why[:250] for name, why in missing.items()}
    where = f"{config.threads} threads"
    if on_gpu:
        where = cuda_runtime.describe()
        metrics |= _gpu_metrics(models[CANDIDATE], calls[CANDIDATE], config, dataset)
        tags |= {
            "tvmopt.gpu": where,
            "tvmopt.latency_of": "one call by the GPU's clock, inputs and outputs staying there",
            "tvmopt.baseline": f"ONNX Runtime on the CPU, {config.threads} threads",
            "tvmopt.memory_of": "the GPU's memory, taken for the model by a process of its own",
        }
    if config.size_mix:
        tags["tvmopt.latency_of"] = f"mean call of rounds of {calls_a_sample}: {config.size_mix}"
        where += f", mean of {calls_a_sample} calls: {config.size_mix}"
    if models[CANDIDATE].metadata.segments:
        metrics["time_compiled_share"] = _compiled_share(calls[CANDIDATE])
    try:
        reference_file = convert_dir / REFERENCE_FILE if config.starts_reference else None
        metrics |= measure_fresh_process(bundles[CANDIDATE], reference_file, config.threads)
        if reference_file is None:
            tags[_UNMEASURED + _OF_REFERENCE] = _ONCE
    except Exception as error:  # the metrics are replaced by the reason
        tags |= dict.fromkeys((_UNMEASURED + name for name in _OF_PROCESS), str(error)[:250])
    rows = table_rows(latency, accuracies, reference_accuracy, bundles, convert_dir)
    write_table(out_dir, rows, samples, accuracies)
    changed = _changed(accuracies[CANDIDATE], latency[CANDIDATE], where)
    series = latency_of_sizes(config, models[CANDIDATE], *of_sizes)
    if series:
        changed.append(f"{len(series[SIZES_SERIES])} sizes, each measured on its golden inputs")
    return StageResult(metrics, tags, changed, series)


def _evaluate_on(
    board: Board,
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None,
) -> StageResult:
    """Check golden outputs on a board, then measure accuracy and latency there."""
    signature = Signature.read(convert_dir)
    dataset = _dataset(data, signature)
    reference = _reference(convert_dir, config.threads)
    accuracy_s = config.accuracy_time_s or _BOARD_ACCURACY_S
    progress(0, 100, f"board {board}")
    with open_session(board) as session:
        said = describe(session)
        models = {label: RemoteModel(session, path, label) for label, path in bundles.items()}
        golden = models[CANDIDATE].check_golden(bundles[CANDIDATE])
        progress(5, 100, "accuracy")
        limited = dataclasses.replace(config, accuracy_time_s=accuracy_s)
        metric = asked_metric(config, signature, dataset)
        accuracies, _ = _accuracies(limited, metric, models, reference, dataset, signature)
        _refuse_nonsense(accuracies[CANDIDATE], signature.min_cosine)
        inputs = dataset.batch(0).inputs
        samples = collect_interleaved(
            {label: functools.partial(model.time, inputs) for label, model in models.items()},
            {
                label: calls_within(config.time_limit_s, model.time(inputs, 1)[0], config.repeats)
                for label, model in models.items()
            },
            lambda done, total: progress(10 + 90 * done // total, 100, "latency"),
        )
        models.clear()  # free their memory on the board before the session ends
    latency = {label: summarise(values) for label, values in samples.items()}
    accuracy = accuracies[CANDIDATE]
    metrics = _candidate_metrics(latency, accuracy, bundles, float(_rows_a_call(dataset)))
    metrics["golden_max_deviation"] = golden
    tags = {
        **_tags(config, accuracy, data),
        "tvmopt.rpc_key": board.key,
        "tvmopt.rpc_tracker": board.address,
        "tvmopt.board": said or "unknown: it runs TVM's runtime alone",
        "tvmopt.latency_of": "one call by the board's clock, inputs and outputs staying there",
        **dict.fromkeys(
            (_UNMEASURED + name for name in _OF_PROCESS),
            "measured on this machine only, not on a board",
        ),
        _UNMEASURED + "baseline_latency_ms_p50": "there is no ONNX Runtime on the board",
    }
    seen, wanted = accuracy.samples, min(dataset.samples, config.max_samples)
    if seen < wanted:
        tags["tvmopt.accuracy_samples"] = (
            f"{seen} of {wanted}: the board took {accuracy_s:g} s for these"
        )
    write_table(
        out_dir, table_rows(latency, accuracies, None, bundles, convert_dir), samples, accuracies
    )
    where = f"{config.threads} threads of board {board.key}"
    return StageResult(metrics, tags, _changed(accuracy, latency[CANDIDATE], where))


def _gpu_metrics(
    model: CompiledModel, call: Callable[[], object], config: EvaluateConfig, dataset: Dataset
) -> dict[str, float]:
    """Return the throughput of back-to-back calls, and the latency with host-device copies."""
    rows = _rows_a_call(dataset)
    limits = min(config.repeats, _COPYING_REPEATS), config.time_limit_s
    [seconds] = interleave({"": call}, *limits).values()
    return {
        "throughput_per_s": rows / seconds_in_a_row(model.gpu_seconds),
        "latency_ms_with_copies": summarise(seconds).p50,
    }


def _compiled_share(call: Callable[[], object]) -> float:
    """Return the share of a call's time that compiled code takes, not ONNX Runtime."""
    inside, start = seconds_in_segments(), time.perf_counter()
    for _ in range(_SHARE_REPEATS):
        call()
    whole = time.perf_counter() - start
    return 1.0 - (seconds_in_segments() - inside) / whole


def _unmeasured(reason: str, cure: str, bundles: dict[str, Path], out_dir: Path) -> StageResult:
    """Return the result for libraries that cannot be run: their sizes, and the reason as tags."""
    sizes = {label: (path / LIBRARY_FILE).stat().st_size for label, path in bundles.items()}
    rows = [table_row(label, None, None, size, {}) for label, size in sizes.items()]
    write_table(out_dir, rows, {}, {})
    names = ("latency_ms_p50", "accuracy", "golden_max_deviation", *_OF_PROCESS)
    return StageResult(
        {"library_bytes": float(sizes[CANDIDATE])},
        {_UNMEASURED + name: reason[:250] for name in names},
        [f"not measured: {reason}; {cure}"],
    )


def _dataset(data: Path | None, signature: Signature) -> Dataset:
    return choose_dataset(
        data, signature.inputs, "evaluate", seed=1, random_kind=signature.random_inputs
    )


def _reference(
    convert_dir: Path, threads: int
) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    session = _session(str(convert_dir / REFERENCE_FILE), threads)
    names = [o.name for o in session.get_outputs()]
    return lambda inputs: session.run(names, inputs)


def _bound_reference(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], threads: int
) -> Callable[[], object]:
    """Return a call of ONNX Runtime on some inputs."""
    session = _session(model, threads)
    return functools.partial(session.run, None, inputs)


def _tags(config: EvaluateConfig, accuracy: Accuracy, data: Path | None) -> dict[str, str]:
    tags = {
        "tvmopt.metric": accuracy.metric,
        "tvmopt.threads": str(config.threads),
        "tvmopt.data": str(data.name) if data else "random inputs: no data was given",
    }
    return tags | ({"tvmopt.fidelity": accuracy.fidelity} if accuracy.fidelity else {})


def _changed(accuracy: Accuracy, latency: LatencySummary, where: str) -> list[str]:
    drop = f"drop {accuracy.drop:+.4f}"
    if accuracy.interval is not None:
        drop += f", {interval_words(accuracy.interval)}"
    fidelity = [f"{accuracy.metric} is the {accuracy.fidelity}"] if accuracy.fidelity else []
    return [
        f"{accuracy.metric} accuracy {accuracy.accuracy:.4f} on {accuracy.samples} samples, {drop}",
        *fidelity,
        f"p50 {latency.p50:.4g} ms, 95% interval {latency.ci_low:.4g} to {latency.ci_high:.4g}, "
        f"{where}",
    ]


def _session(model: onnx.ModelProto | str, threads: int) -> ort.InferenceSession:
    import onnxruntime as ort

    options = session_options(model, threads)
    # Threads that go on spinning after a call would slow down whoever is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _accuracies(
    config: EvaluateConfig,
    metric: Metric | str,
    models: Mapping[str, Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]],
    reference: Callable[[dict[str, np.ndarray]], list[np.ndarray]],
    dataset: Dataset,
    signature: Signature,
) -> tuple[dict[str, Accuracy], float]:
    if dataset.samples > config.max_samples:
        dataset = dataset.take(range(config.max_samples))
    has_labels = dataset.labels is not None
    scores = signature.class_scores.on(random_inputs=dataset.is_random)
    meters = {
        label: AccuracyMeter(metric, has_labels, signature.tolerance, class_scores=scores)
        for label in models
    }
    rounding = InputRounding({} if dataset.is_random else dataset.arrays)
    spent = dict.fromkeys(models, 0.0)
    began = time.perf_counter()
    for number, batch in enumerate(dataset.batches()):
        # ONNX Runtime's time counts: on the CPU it may be a thousand times as slow as a GPU.
        if number and 0 < config.accuracy_time_s < time.perf_counter() - began:
            break
        expected = reference(batch.inputs)
        again = []
        if meters[CANDIDATE].takes_again:
            again = rounding.first_outputs(reference, batch.inputs)
        for label, model in models.items():
            # Untuned TVM computes the same numbers, but may need hours for all of the data.
            if label != CANDIDATE and spent[label] > _BASELINE_ACCURACY_S:
                meters.pop(label, None)
                continue
            start = time.perf_counter()
            outputs = model(batch.inputs)
            spent[label] += time.perf_counter() - start
            meters[label].add(outputs, expected, batch.labels, batch.valid, batch.padding, again)
    found = {
        label: meter.result(with_interval=label == CANDIDATE) for label, meter in meters.items()
    }
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
    rows_a_call: float,
) -> dict[str, float]:
    own = latency[CANDIDATE]
    metrics = own.metrics()
    metrics["throughput_per_s"] = 1e3 * rows_a_call / own.p50
    metrics["accuracy"] = accuracy.accuracy
    metrics["accuracy_drop"] = accuracy.drop
    if accuracy.interval is not None:
        metrics["accuracy_drop_ci_low"], metrics["accuracy_drop_ci_high"] = accuracy.interval
    metrics["reference_accuracy"] = accuracy.reference
    metrics["cosine"] = accuracy.cosine
    metrics["mean_cosine_loss"] = accuracy.mean_loss
    metrics["max_abs_error"] = accuracy.max_abs_error
    if accuracy.agreement is not None:
        metrics["top1_agreement"] = accuracy.agreement
    metrics["library_bytes"] = float((bundles[CANDIDATE] / LIBRARY_FILE).stat().st_size)
    if REFERENCE in latency:
        metrics["baseline_latency_ms_p50"] = latency[REFERENCE].p50
        metrics["speedup_vs_baseline"] = latency[REFERENCE].p50 / own.p50
    if peers := {label: latency[label].p50 for label in TORCH_PEERS if label in latency}:
        metrics |= {f"{label}_latency_ms_p50": p50 for label, p50 in peers.items()}
        metrics["speedup_vs_torch_compile"] = min(peers.values()) / own.p50
    if UNTUNED in latency:
        metrics["untuned_latency_ms_p50"] = latency[UNTUNED].p50
        metrics["speedup_vs_untuned"] = latency[UNTUNED].p50 / own.p50
    return metrics


def _rows_a_call(dataset: Dataset) -> int:
    if not dataset.stacked:
        return dataset.batch_size
    first = dataset.specs[0].shape
    return first[0] if len(first) > 1 else 1
