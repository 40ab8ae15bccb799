"""Evaluate compiled models on a board, through TVM's RPC: golden outputs, accuracy, latency."""

from __future__ import annotations

import functools
from pathlib import Path

from tvmopt.config import EvaluateConfig
from tvmopt.digest import sha256_file
from tvmopt.evaluate.latency import calls_within, collect_interleaved
from tvmopt.evaluate.statistics import summarise
from tvmopt.remote import Board
from tvmopt.remote.model import RemoteModel, describe
from tvmopt.remote.session import open_session
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.compared_accuracy import compare_accuracy
from tvmopt.stages.comparison_table import CANDIDATE, table_rows, write_table
from tvmopt.stages.evaluate_report import (
    FRESH_PROCESS_METRICS,
    accuracy_tags,
    candidate_metrics,
    sentences,
    unmeasured_tag,
)
from tvmopt.stages.evaluation_data import evaluation_data, rows_a_call
from tvmopt.stages.float_session import float_reference
from tvmopt.stages.kept_outputs import with_kept_outputs
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.signature import Signature

_ACCURACY_S = 120.0


def evaluate_on_board(
    board: Board,
    config: EvaluateConfig,
    convert_dir: Path,
    bundles: dict[str, Path],
    out_dir: Path,
    progress: Progress,
    data: Path | None,
) -> StageResult:
    """Check golden outputs on a board, then measure accuracy and latency there.

    Arguments and errors: :func:`tvmopt.stages.evaluate.evaluate`.
    """
    signature = Signature.read(convert_dir)
    dataset = evaluation_data(data, signature.inputs, signature.random_inputs)
    reference = with_kept_outputs(
        float_reference(convert_dir, config.threads), sha256_file(convert_dir / REFERENCE_FILE)
    )
    accuracy_s = config.accuracy_time_s or _ACCURACY_S
    progress(0, 100, f"board {board}")
    with open_session(board) as session:
        said = describe(session)
        models = {label: RemoteModel(session, path, label) for label, path in bundles.items()}
        golden = models[CANDIDATE].check_golden(bundles[CANDIDATE])
        progress(5, 100, "accuracy")
        metric = asked_metric(config, signature.outputs, dataset)
        accuracies = compare_accuracy(
            metric,
            models,
            reference,
            dataset,
            signature,
            most_samples=config.max_samples,
            time_limit_s=accuracy_s,
        )
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
    metrics = candidate_metrics(latency, accuracy, bundles, float(rows_a_call(dataset)))
    metrics["golden_max_deviation"] = golden
    tags = {
        **accuracy_tags(config, accuracy, data),
        "tvmopt.rpc_key": board.key,
        "tvmopt.rpc_tracker": board.address,
        "tvmopt.board": said or "unknown: it runs TVM's runtime alone",
        "tvmopt.latency_of": "one call by the board's clock, inputs and outputs staying there",
    }
    for name in FRESH_PROCESS_METRICS:
        tags |= unmeasured_tag(name, "measured on this machine only, not on a board")
    tags |= unmeasured_tag("baseline_latency_ms_p50", "there is no ONNX Runtime on the board")
    seen, wanted = accuracy.samples, min(dataset.samples, config.max_samples)
    if seen < wanted:
        tags["tvmopt.accuracy_samples"] = (
            f"{seen} of {wanted}: the board took {accuracy_s:g} s for these"
        )
    write_table(
        out_dir, table_rows(latency, accuracies, None, bundles, convert_dir), samples, accuracies
    )
    where = f"{config.threads} threads of board {board.key}"
    return StageResult(metrics, tags, sentences(accuracy, latency[CANDIDATE], where))
