"""Report a conversion: metrics, the lines of the run's note, and its tables."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from tvmopt.choices import EXACT_THRESHOLDS, LOW_DTYPES
from tvmopt.config import ConvertConfig
from tvmopt.frontend import Layer
from tvmopt.frontend.partition import Segment
from tvmopt.frontend.trees.thresholds import has_trees
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.check import Findings
from tvmopt.stages.float_model import FloatModel
from tvmopt.transform.conversion import Conversion
from tvmopt.transform.layout import LayoutChange

#: Tag of a model that runs in part in ONNX Runtime.
SEGMENTS_TAG = "tvmopt.fallback"


def segment_tags(segments: Sequence[Segment]) -> dict[str, str]:
    """Return the tag of a model that runs in part in ONNX Runtime."""
    if not segments:
        return {}
    nodes = sum(len(segment.nodes) for segment in segments)
    return {SEGMENTS_TAG: f"{nodes} node(s) in {len(segments)} segment(s): onnxruntime"}


def conversion_metrics(
    rows: Sequence[Layer],
    converted: Conversion,
    findings: Findings | None,
    apart: Collection[int] = (),
) -> dict[str, float]:
    """Return the metrics of a conversion.

    Args:
        rows: The layer table after it.
        converted: The conversion.
        findings: What the check found.
        apart: Indices of layers that ONNX Runtime runs.
    """
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
        compiled = sum(row.flops or 0 for row in rows if row.index not in apart)
        metrics["flops_compiled_share"] = compiled / metrics["flops"] if metrics["flops"] else 1.0
    return metrics


def conversion_lines(
    config: ConvertConfig,
    model: FloatModel,
    rows: Sequence[Layer],
    converted: Conversion,
    findings: Findings | None,
    params_bytes: int,
) -> list[str]:
    """Return the lines of the run's note: what was read, changed, kept and checked."""
    nodes = len(model.prepared.reference.graph.node), len(model.prepared.model.graph.node)
    lines = [
        f"prepared: {nodes[0]} -> {nodes[1]} ONNX nodes",
        f"imported: {len(rows)} layers, {params_bytes / 1e6:.1f} MB of weights",
    ]
    if config.dtype != "float32":
        counts = Counter(row.dtype for row in rows)
        counted = [f"{d}: {counts[d]}" for d in LOW_DTYPES if counts[d] or d == config.dtype]
        lines.append(f"{', '.join(counted)} of {len(rows)} layers")
    if config.allow_tf32:
        lines.append("float32 matmuls and convolutions may round to TF32")
    if config.thresholds != EXACT_THRESHOLDS and has_trees(model.prepared.model):
        lines.append(f"thresholds of trees: {config.thresholds}")
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
    if findings is not None:
        where = " and ".join(dict.fromkeys(trial.what for trial in model.trials))
        worst = "" if findings.deviation is None else f"largest deviation {findings.deviation:.2g}"
        against = f"cosine {findings.cosine:.5f} with float" if config.may_lose_accuracy else ""
        lines.append(f"checked on {where}: {', '.join(filter(None, (worst, against)))}")
    return lines


def write_layers(path: Path, rows: Sequence[Layer]) -> None:
    """Write the layer table as CSV."""
    with path.open("w", newline="") as file:
        write_csv(file, [f.name for f in dataclasses.fields(Layer)], map(dataclasses.astuple, rows))


def write_changes(path: Path, converted: Conversion) -> None:
    """Write the inserted layout conversions as CSV."""
    with path.open("w", newline="") as file:
        fields = [f.name for f in dataclasses.fields(LayoutChange)]
        write_csv(file, fields, map(dataclasses.astuple, converted.layout_changes))
