"""Sensitivity analysis: error and gain of converting each layer, and which layers to skip.

Shared statistics are computed once: ranges of activations, outputs of the float model, and the
intermediate values that allow a converted layer and its downstream nodes to run alone. Time is
bounded: each layer gets its share of the remaining time, and unreached layers are marked.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import onnx

from tvmopt.choices import LOW_DTYPES
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import Batch, Dataset
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.frontend.class_scores import ClassScores, find_class_scores
from tvmopt.frontend.inferred_shapes import with_onnx_shapes
from tvmopt.frontend.layers import layer_table
from tvmopt.frontend.prepare import Prepared
from tvmopt.metrics.metric import Metric
from tvmopt.quantize.all_converted import all_converted
from tvmopt.quantize.analysis import Analysis, part_of_time
from tvmopt.quantize.analysis_time import phase_deadlines
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.checks import check_float
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.quantize.estimated_costs import estimated_costs
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import Judge
from tvmopt.quantize.layer_dtypes import choose_layer_dtypes
from tvmopt.quantize.layer_times import LayerTimes, roofline_times
from tvmopt.quantize.layer_timing import notes_on_latency, why_untimed, with_latency
from tvmopt.quantize.measured_skip_sets import measured_skip_sets
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.ranges import Progress, Ranges, collect_ranges
from tvmopt.quantize.report import Sensitivity, SkipSet
from tvmopt.quantize.roofline import roofline, roofline_of
from tvmopt.quantize.sample_count import (
    FIRST_SAMPLES,
    choose_samples,
    first_samples,
    positions_of_fewer,
    too_few_samples,
    wanted_samples,
)
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.single_layers import with_errors

_SHARE_OF_ONE = 0.03  # of the time limit, for one measurement of a converted model
# For one of a map of dtypes: few are measured, and a metric of few samples decides nothing.
_SHARE_OF_ONE_MAP = 0.08
_SHARE_OF_SKIP_SETS = 0.6  # of the remaining time, when layers are also timed
_SHARE_OF_SINGLE_LAYERS = 0.4  # of the remaining time, before skip sets
_SHARE_OF_PREDICTIONS = 0.25  # of the time limit, for the cost model of the kernels
# Of the remaining time, where all layers in int8 meet the bar: other maps are only alternatives.
_SHARE_WHERE_INT8_HOLDS = 1 / 3
# Part of the layers to time beside predictions of all: a few of them say less than these.
_LEAST_PART_TIMED = 0.5


def sensitivity(
    model: Prepared | onnx.ModelProto,
    data: Dataset,
    *,
    dtypes: Sequence[str] = LOW_DTYPES,
    scheme: Scheme | None = None,
    ranges: Ranges | None = None,
    target: TargetSpec | None = None,
    time_limit_s: float = 120.0,
    samples: int = 256,
    max_drop: float = 0.01,
    layer_dtypes: bool = False,
    seed: int = 0,
    metric: Metric | str = "auto",
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure error and gain of converting each layer; propose skip sets, or a dtype per layer.

    Args:
        model: A prepared float32 model.
        data: Calibration data, which evaluation must not use.
        dtypes: dtypes to analyse, of ``LOW_DTYPES``.
        scheme: Quantization scheme of int8; by default :class:`Scheme`'s.
        ranges: Ranges of the activations; by default collected from the samples.
        target: Target whose peaks determine the gain, and on which layers are timed. Without
            a target, the peaks are this machine's and nothing is timed.
        time_limit_s: Time limit in seconds; work in progress may exceed it.
        samples: Most samples to measure on, chosen from the data with ``seed``. Their number
            follows from how much the loss varies between the first 16.
        max_drop: Accuracy that a skip set may lose, see :class:`~tvmopt.quantize.bar.Bar`.
        layer_dtypes: Whether to choose a dtype for each layer, instead of skip sets for each dtype.
        seed: Seed of the sample choice.
        metric: What accuracy means, see :mod:`tvmopt.metrics.metric`; one of the user needs labels.
        progress: Called with layers done, their number, and a description.

    Raises:
        ConfigError: When a parameter is invalid, or the model is quantized or not float32.
        ModelError: When ONNX Runtime cannot run the model on the data.
    """
    start = time.monotonic()
    deadline = start + time_limit_s
    _check(dtypes, time_limit_s, samples)
    bar, scheme = Bar(max_drop), scheme or Scheme()
    proto = model.model if isinstance(model, Prepared) else with_onnx_shapes(model)
    check_float(proto)
    session = new_session(proto)
    first = first_samples(session, data, len(dtypes), time_limit_s)
    few = choose_samples(data, min(samples, first), seed)
    if "int8" in dtypes and ranges is None:
        ranges = collect_ranges(proto, [b.inputs for b in few.batches()], scheme, progress)
    graph = Graph(proto.graph)
    setting = Setting(proto, graph, scheme, ranges)
    layers, nodes = layer_table(proto), {node.name: node for node in graph.nodes}
    scores = find_class_scores(proto).on(random_inputs=data.is_random)

    def begin(chosen: Dataset) -> tuple[Analysis, str]:
        """Return an analysis on some samples, and why it does not use the user's metric."""
        batches = list(chosen.batches())
        expected = [session.run(None, b.inputs) for b in batches]
        rounding = InputRounding({} if data.is_random else chosen.arrays)

        def again(batch: Batch) -> list[np.ndarray]:
            return rounding.first_outputs(lambda inputs: session.run(None, inputs), batch.inputs)

        judge, why_not_asked = _judge(batches, expected, bar, scores, metric, again)
        parts = setting, layers, nodes, dtypes, batches, bar, judge, progress
        return Analysis(*parts, mixes=layer_dtypes), why_not_asked

    peaks = roofline_of(target) if target is not None else roofline()
    untimed = why_untimed(target)
    timed_on = None if untimed else target

    chosen = few
    analysis, why_not_asked = begin(chosen)
    times = roofline_times(analysis, peaks)
    if layer_dtypes and target is not None:
        times = _with_predictions(
            analysis, times, target, start + _SHARE_OF_PREDICTIONS * time_limit_s
        )
    costs = estimated_costs(analysis, times)
    starts = all_converted(analysis, costs, deadline)
    share = _SHARE_OF_ONE_MAP if layer_dtypes else _SHARE_OF_ONE
    wanted = wanted_samples(analysis, starts, share * time_limit_s)
    if min(wanted, samples, data.samples) > few.samples:
        chosen = choose_samples(data, min(wanted, samples), seed)
        at = positions_of_fewer(data, min(samples, first), min(wanted, samples), seed)
        before = {dtype: start.at(at) for dtype, start in starts.items()}
        analysis, why_not_asked = begin(chosen)
        starts = all_converted(analysis, costs, deadline, before)
    if layer_dtypes and "int8" in starts and starts["int8"].verdict.holds:
        deadline = part_of_time(deadline, _SHARE_WHERE_INT8_HOLDS)
    measurement_s = max(start.seconds for start in starts.values())
    phases = phase_deadlines(time.monotonic(), deadline, measurement_s)
    if layer_dtypes:
        if timed_on is not None:
            least_part = _LEAST_PART_TIMED if timed_on.gpu is None else 0.0
            costs = with_latency(analysis, costs, timed_on, phases.timing, least_part)
        further = phases.further_errors(time.monotonic())
        costs, notes = with_errors(analysis, costs, phases.errors, further, compared=True)
    else:
        errors_end = part_of_time(deadline, _SHARE_OF_SINGLE_LAYERS)
        costs, notes = with_errors(analysis, costs, errors_end, errors_end)
    usual = min(samples, FIRST_SAMPLES, data.samples)
    fewer = "" if chosen.samples >= usual else f"{chosen.samples} samples were measured, for time"
    notes += [why for why in (untimed, why_not_asked, fewer, too_few_samples(analysis)) if why]
    sets: list[SkipSet] = []
    maps: list[DtypeMap] = []
    if layer_dtypes:
        known = {dtype: start.verdict for dtype, start in starts.items()}
        maps = choose_layer_dtypes(analysis, costs, times, deadline, known, measurement_s)
    else:
        for_sets = 1.0 if timed_on is None else _SHARE_OF_SKIP_SETS
        sets = measured_skip_sets(
            analysis, costs, starts, part_of_time(deadline, for_sets), deadline
        )
        if timed_on is not None:
            costs = with_latency(analysis, costs, timed_on, deadline)
    if timed_on is not None:
        notes += notes_on_latency(costs)
    return Sensitivity(
        dtypes=tuple(dtypes),
        costs=tuple(costs.values()),
        skip_sets=tuple(sets),
        samples=chosen.samples,
        seconds=time.monotonic() - start,
        settings={
            "scheme": scheme.to_dict(),
            "bar": dataclasses.asdict(bar),
            "metric": "fidelity" if why_not_asked else str(metric),
            "seed": seed,
            "time_limit_s": time_limit_s,
            "peaks": dataclasses.asdict(peaks),
        },
        notes=tuple(notes),
        dtype_maps=tuple(maps),
    )


def _with_predictions(
    analysis: Analysis, times: LayerTimes, target: TargetSpec, deadline: float
) -> LayerTimes:
    """Return times with those that the kernels' cost model predicts, on a CPU."""
    from tvmopt.quantize.kernel_times import kernel_times

    return kernel_times(analysis.setting.model, analysis.dtypes, times, target, deadline)


def _judge(
    batches: Sequence[Batch],
    expected: Sequence[Sequence[np.ndarray]],
    bar: Bar,
    scores: ClassScores,
    metric: Metric | str,
    again: Callable[[Batch], Sequence[np.ndarray]],
) -> tuple[Judge, str]:
    """Return the judge, and why it does not use the metric; few samples may lack a class."""
    try:
        return Judge(batches, expected, bar, class_scores=scores, metric=metric, again=again), ""
    except ConfigError as error:
        samples = sum(batch.valid for batch in batches)
        judge = Judge(batches, expected, bar, class_scores=scores, metric="fidelity", again=again)
        return judge, (
            f"layers are judged by fidelity, since {error} on the {samples} samples of the "
            "sensitivity analysis"
        )


def _check(dtypes: Sequence[str], time_limit_s: float, samples: int) -> None:
    unknown = [dtype for dtype in dtypes if dtype not in LOW_DTYPES]
    if unknown or not dtypes or len(set(dtypes)) != len(dtypes):
        raise ConfigError(
            f"dtypes must be one or more of {', '.join(LOW_DTYPES)}, each once, "
            f"but got {', '.join(dtypes) or 'none'}"
        )
    if not time_limit_s > 0:
        raise ConfigError(f"time_limit_s must be above 0 seconds, but got {time_limit_s}")
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, but got {samples}")
