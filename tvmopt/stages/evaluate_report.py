"""Metrics, tags and sentences that the evaluate stage reports about the candidate."""

from __future__ import annotations

from pathlib import Path

from tvmopt.config import EvaluateConfig
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.drop_interval import interval_words
from tvmopt.evaluate.statistics import LatencySummary
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE, UNTUNED
from tvmopt.stages.torch_peer import TORCH_PEERS

#: Metric of the reference, which one trial of a search measures.
REFERENCE_COLD_START = "baseline_cold_start_ms"
#: Metrics that a child process measures.
FRESH_PROCESS_METRICS = ("peak_memory_mb", "cold_start_ms", REFERENCE_COLD_START)
_MOST_CHARACTERS = 250  # of a reason in a tag


def unmeasured_tag(metric: str, reason: str) -> dict[str, str]:
    """Return the tag that gives the reason why a metric is missing."""
    return {f"tvmopt.unmeasured.{metric}": reason[:_MOST_CHARACTERS]}


def candidate_metrics(
    latency: dict[str, LatencySummary],
    accuracy: Accuracy,
    bundles: dict[str, Path],
    rows_a_call: float,
) -> dict[str, float]:
    """Return latency, throughput, accuracy and size of the candidate, and its speedups.

    Args:
        latency: Latency of a call, by label; a speedup for each peer that was measured.
        accuracy: The candidate's.
        bundles: Folders of the compiled models, by label.
        rows_a_call: Rows of the first input of a call.
    """
    own = latency[CANDIDATE]
    metrics = own.metrics()
    metrics["throughput_per_s"] = 1e3 * rows_a_call / own.p50
    metrics["accuracy"] = accuracy.accuracy
    metrics["accuracy_drop"] = accuracy.drop
    metrics["accuracy_samples"] = float(accuracy.samples)
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


def accuracy_tags(config: EvaluateConfig, accuracy: Accuracy, data: Path | None) -> dict[str, str]:
    """Return the tags about the metric, the data and the threads."""
    tags = {
        "tvmopt.metric": accuracy.metric,
        "tvmopt.threads": str(config.threads),
        "tvmopt.data": str(data.name) if data else "random inputs: no data was given",
    }
    return tags | ({"tvmopt.fidelity": accuracy.fidelity} if accuracy.fidelity else {})


def sentences(accuracy: Accuracy, latency: LatencySummary, where: str) -> list[str]:
    """Return the sentences about the candidate's accuracy and latency."""
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
