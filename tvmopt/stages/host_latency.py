"""Time compiled models beside ONNX Runtime and torch.compile on this machine's CPU or GPU."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tvmopt.config import EvaluateConfig
from tvmopt.evaluate.gpu_latency import interleave_on_gpu, seconds_in_a_row
from tvmopt.evaluate.latency import interleave
from tvmopt.evaluate.statistics import summarise
from tvmopt.runtime import CompiledModel
from tvmopt.runtime.segments import seconds_in_segments
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE
from tvmopt.stages.float_session import FloatModelCall
from tvmopt.stages.result import Progress
from tvmopt.stages.size_latency import MixedCalls
from tvmopt.stages.torch_peer import time_torch_compile

_COPYING_REPEATS = 50
_SHARE_REPEATS = 20


@dataclasses.dataclass(frozen=True)
class HostLatency:
    """Latency samples of all contenders.

    Attributes:
        samples: Seconds of single calls, by label; of a mix, the mean of a round's calls.
        missing: Why a peer has no samples, by label.
        candidate: The call of the candidate; of a mix, its round of calls.
    """

    samples: dict[str, list[float]]
    missing: dict[str, str]
    candidate: Callable[[], object]


def time_calls(
    config: EvaluateConfig,
    models: Mapping[str, CompiledModel],
    reference: FloatModelCall,
    inputs: dict[str, np.ndarray],
    on_gpu: bool,
    torch_source: Path | None,
    progress: Progress,
) -> HostLatency:
    """Time single calls, interleaved; on a GPU by its clock.

    Args:
        config: Repeats and time limit.
        models: The compiled models, by label.
        reference: The float model.
        inputs: Inputs of each call.
        on_gpu: Whether the models run on the GPU.
        torch_source: Source model of PyTorch, which torch.compile runs on the GPU; None for none.
        progress: Called after every round.
    """
    calls: dict[str, Callable[[], object]] = {
        label: functools.partial(model, inputs) for label, model in models.items()
    }
    onnxruntime: dict[str, Callable[[], object]] = {REFERENCE: functools.partial(reference, inputs)}
    limits = config.repeats, config.time_limit_s
    told = _told(progress)
    if not on_gpu:
        samples = interleave({**calls, **onnxruntime}, *limits, told)
        return HostLatency(samples, {}, calls[CANDIDATE])
    for call in calls.values():
        call()  # so that the inputs are on the GPU
    bare = {label: model.gpu_seconds for label, model in models.items()}
    samples = interleave_on_gpu(bare, onnxruntime, *limits, told)
    missing: dict[str, str] = {}
    if torch_source is not None:
        progress(100, 100, "torch.compile")
        of_torch, missing = time_torch_compile(torch_source, inputs)
        samples |= of_torch
    return HostLatency(samples, missing, calls[CANDIDATE])


def time_mix(config: EvaluateConfig, mixed: MixedCalls, progress: Progress) -> HostLatency:
    """Time rounds of calls in the sizes of a mix; a sample is the mean call of a round."""
    found = interleave(mixed.rounds, config.repeats, config.time_limit_s, _told(progress))
    samples = {label: [s / mixed.calls for s in seconds] for label, seconds in found.items()}
    return HostLatency(samples, {}, mixed.rounds[CANDIDATE])


def _told(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(10 + 90 * done // total, 100, "latency")


def gpu_metrics(
    model: CompiledModel, call: Callable[[], object], config: EvaluateConfig, rows: int
) -> dict[str, float]:
    """Return the throughput of back-to-back calls, and the latency with host-device copies.

    Args:
        model: The compiled model.
        call: A call of it that copies inputs and outputs.
        config: Repeats and time limit.
        rows: Rows of the first input of a call.
    """
    limits = min(config.repeats, _COPYING_REPEATS), config.time_limit_s
    [seconds] = interleave({"": call}, *limits).values()
    return {
        "throughput_per_s": rows / seconds_in_a_row(model.gpu_seconds),
        "latency_ms_with_copies": summarise(seconds).p50,
    }


def compiled_share(call: Callable[[], object]) -> float:
    """Return the share of a call's time that compiled code takes, not ONNX Runtime."""
    inside, start = seconds_in_segments(), time.perf_counter()
    for _ in range(_SHARE_REPEATS):
        call()
    whole = time.perf_counter() - start
    return 1.0 - (seconds_in_segments() - inside) / whole
