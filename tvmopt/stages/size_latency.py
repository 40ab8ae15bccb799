"""Latency of a library of several sizes: of each size, and of the user's mix of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx

from tvmopt.config import EvaluateConfig
from tvmopt.evaluate.latency import interleave
from tvmopt.evaluate.statistics import summarise
from tvmopt.frontend.size_mix import parse_size_mix
from tvmopt.runtime import CompiledModel, ModelMetadata
from tvmopt.runtime.model import read_golden
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE
from tvmopt.stages.size_reference import read_reference

#: Metrics with the latency of each size as a step: of the candidate, and of ONNX Runtime.
SIZES_SERIES = "latency_ms_p50_of_size"
BASELINE_SIZES_SERIES = "baseline_latency_ms_p50_of_size"

_Call = Callable[[], object]
# Makes the call of ONNX Runtime on some inputs.
_Bind = Callable[[onnx.ModelProto, dict[str, np.ndarray]], _Call]


@dataclasses.dataclass(frozen=True)
class MixedCalls:
    """Rounds of calls of different sizes.

    Attributes:
        rounds: A round of each contender, by label.
        calls: Calls of a round; a latency is the time of a round by it.
        rows: Mean extent of the first axis of the first input.
    """

    rounds: dict[str, _Call]
    calls: int
    rows: float


def mixed_calls(
    config: EvaluateConfig,
    models: Mapping[str, CompiledModel],
    bundle: Path,
    convert_dir: Path,
    bind: _Bind,
) -> MixedCalls:
    """Return rounds of calls in the sizes of ``size_mix``, on the golden inputs of each.

    Args:
        config: With the mix.
        models: The compiled models, by label; all have the candidate's sizes.
        bundle: Folder of the candidate.
        convert_dir: Output of the convert stage, with the reference of each size.
        bind: Makes the call of ONNX Runtime.

    Raises:
        ConfigError: When the mix does not fit the candidate's sizes.
    """
    metadata = models[CANDIDATE].metadata
    counts = parse_size_mix(
        config.size_mix, [one.name for one in metadata.dimensions], _values(metadata)
    )
    used = [size for size, count in enumerate(counts) if count]
    calls: dict[str, list[_Call]] = {label: [] for label in (*models, REFERENCE)}
    for size in used:
        inputs, _ = read_golden(bundle, metadata, size)
        for label, model in models.items():
            calls[label] += [functools.partial(model, inputs)] * counts[size]
        onnxruntime = bind(read_reference(convert_dir, size), inputs)
        calls[REFERENCE] += [onnxruntime] * counts[size]
    total = sum(counts)
    rows = sum(counts[size] * (metadata.sizes[size].inputs[0] or (1,))[0] for size in used) / total
    return MixedCalls(
        {label: functools.partial(_run, own) for label, own in calls.items()}, total, rows
    )


def latency_of_sizes(
    config: EvaluateConfig, model: CompiledModel, bundle: Path, convert_dir: Path, bind: _Bind
) -> dict[str, list[tuple[int, float, float]]]:
    """Return the median latency of each size, with its number as the step; empty for one size.

    ONNX Runtime is timed in turns with the model, one size after the other.
    """
    sizes = len(model.metadata.sizes)
    series: dict[str, list[tuple[int, float, float]]] = {}
    for size in range(sizes):
        inputs, _ = read_golden(bundle, model.metadata, size)
        onnxruntime = bind(read_reference(convert_dir, size), inputs)
        calls: dict[str, _Call] = {
            SIZES_SERIES: functools.partial(model, inputs), BASELINE_SIZES_SERIES: onnxruntime
        }  # fmt: skip
        samples = interleave(calls, config.repeats, config.time_limit_s / sizes)
        for name, seconds in samples.items():
            series.setdefault(name, []).append((size, float(size), summarise(seconds).p50))
    return series


def _values(metadata: ModelMetadata) -> list[tuple[int, ...]]:
    """Return the extent of each dimension, of each size."""
    first = [one.inputs[0] for one in metadata.dimensions]
    return [
        tuple(size.inputs[position][axis] for position, axis in first) for size in metadata.sizes
    ]


def _run(calls: list[_Call]) -> None:
    for call in calls:
        call()
