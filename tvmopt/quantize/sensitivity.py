"""Sensitivity analysis: error and gain of converting each layer, and which layers to skip.

Shared statistics are computed once: ranges of activations, outputs of the float model, and the
intermediate values that allow a converted layer and its downstream nodes to run alone. Time is
bounded: each layer gets its share of the remaining time, and unreached layers are marked.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tvmopt.choices import LOW_DTYPES
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import Batch, Dataset
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.frontend.class_scores import ClassScores, find_class_scores
from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.frontend.layers import layer_table
from tvmopt.frontend.prepare import Prepared
from tvmopt.metrics.metric import Metric
from tvmopt.quantize.analysis import Analysis, Costs, is_convertible, part_of_time
from tvmopt.quantize.analysis_time import phase_deadlines
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.checks import check_float
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import Convert, JointVerdict, Judge, converter
from tvmopt.quantize.layer_dtypes import choose_layer_dtypes
from tvmopt.quantize.layer_timing import notes_on_latency, why_untimed, with_latency
from tvmopt.quantize.loss_bound import batches_for_mean
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Progress, Ranges, collect_ranges
from tvmopt.quantize.report import ESTIMATED, NOT_CONVERTIBLE, LayerCost, Sensitivity, SkipSet
from tvmopt.quantize.roofline import LayerRoofline, LayerWork, roofline, roofline_of, work_of
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.single_layers import with_errors
from tvmopt.quantize.skipsets import Ladder

if TYPE_CHECKING:
    import onnxruntime as ort

_FIRST_SAMPLES = 16  # samples that tell how many are needed
_SHARE_OF_FIRST = 0.2  # of the time limit, for the first samples
_SHARE_OF_ONE = 0.03  # of the time limit, for one measurement of a converted model
# For one of a map of dtypes: few are measured, and a metric of few samples decides nothing.
_SHARE_OF_ONE_MAP = 0.08
_SHARE_OF_SKIP_SETS = 0.6  # of the remaining time, when layers are also timed
_SHARE_OF_SINGLE_LAYERS = 0.4  # of the remaining time, before skip sets
_LADDER_WEIGHT = {dtype: 1.0 if dtype in HALF_FLOATS else 2.0 for dtype in LOW_DTYPES}


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
    proto = model.model if isinstance(model, Prepared) else _with_types(model)
    check_float(proto)
    session = new_session(proto)
    first = _first_samples(session, data, len(dtypes), time_limit_s)
    few = _choose(data, min(samples, first), seed)
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
        return Analysis(*parts), why_not_asked

    peaks = roofline_of(target) if target is not None else roofline()
    untimed = why_untimed(target)
    timed_on = None if untimed else target

    chosen = few
    analysis, why_not_asked = begin(chosen)
    costs = _estimated(analysis, peaks)
    starts = _all_converted(analysis, costs, deadline)
    share = _SHARE_OF_ONE_MAP if layer_dtypes else _SHARE_OF_ONE
    wanted = _wanted_samples(analysis, starts, share * time_limit_s)
    if min(wanted, samples, data.samples) > few.samples:
        chosen = _choose(data, min(wanted, samples), seed)
        analysis, why_not_asked = begin(chosen)
        starts = _all_converted(analysis, costs, deadline)
    measurement_s = max(start.seconds for start in starts.values())
    phases = phase_deadlines(time.monotonic(), deadline, measurement_s)
    errors_end = phases.errors
    if not layer_dtypes:
        errors_end = part_of_time(deadline, _SHARE_OF_SINGLE_LAYERS)
    costs, notes = with_errors(analysis, costs, errors_end, compared=layer_dtypes)
    usual = min(samples, _FIRST_SAMPLES, data.samples)
    fewer = "" if chosen.samples >= usual else f"{chosen.samples} samples were measured, for time"
    notes += [why for why in (untimed, why_not_asked, fewer, _too_few(analysis)) if why]
    sets: list[SkipSet] = []
    maps: list[DtypeMap] = []
    if layer_dtypes:  # the choice reads the times
        if timed_on is not None:
            until = phases.end_of_timing(time.monotonic())
            costs = with_latency(analysis, costs, timed_on, until)
        works = {layer.index: _work(analysis, layer) for layer in analysis.layers}
        known = {dtype: start.verdict for dtype, start in starts.items()}
        maps = choose_layer_dtypes(analysis, costs, works, peaks, deadline, known, measurement_s)
    else:
        for_sets = 1.0 if timed_on is None else _SHARE_OF_SKIP_SETS
        sets = _skip_sets(analysis, costs, starts, part_of_time(deadline, for_sets), deadline)
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


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # types may be stored already
        return model


def _choose(data: Dataset, samples: int, seed: int) -> Dataset:
    # Whole inputs may be few; rows of a batch are taken in full batches, at least one.
    if data.samples <= samples:
        return data
    count = max(samples, min(data.batch_size, data.samples))
    order = np.random.default_rng(seed).permutation(data.samples)
    return data.take(np.sort(order[:count]))


def _first_samples(
    session: ort.InferenceSession, data: Dataset, dtypes: int, time_limit_s: float
) -> int:
    """Return how many samples to begin with: fewer where the float model is slow.

    The float model and the model in each dtype run on them, an int8 model maybe twice as long.
    """
    inputs = data.batch(0).inputs
    session.run(None, inputs)
    start = time.monotonic()
    session.run(None, inputs)
    once = time.monotonic() - start
    batches = int(_SHARE_OF_FIRST * time_limit_s / ((1 + 2 * dtypes) * max(once, 1e-6)))
    if batches * data.batch_size >= _FIRST_SAMPLES:
        return _FIRST_SAMPLES
    return max(1, batches) * data.batch_size


def _wanted_samples(analysis: Analysis, starts: Mapping[str, _Start], most_s: float) -> int:
    """Return the number of samples to measure on, judged by a few.

    Enough for a mean loss with a standard error of a tenth, and for the accuracy bar to be told;
    not so many that a measurement of one model takes too long.

    Args:
        analysis: The analysis on a few samples.
        starts: Verdicts on them.
        most_s: Seconds that a measurement of one model may take.
    """
    few = sum(batch.valid for batch in analysis.batches)
    a_batch = few / len(analysis.batches)
    batches = max(batches_for_mean(start.verdict.losses or (0.0,)) for start in starts.values())
    wanted = max(math.ceil(batches * a_batch), analysis.judge.samples_to_tell())
    return min(wanted, int(a_batch * most_s / max(analysis.judge.batch_s, 1e-6)))


def _too_few(analysis: Analysis) -> str:
    """Return that the samples cannot resolve the allowed drop; empty where they can."""
    samples = sum(batch.valid for batch in analysis.batches)
    needed = analysis.judge.samples_to_tell()
    if samples >= needed or not analysis.judge.by_closeness:
        return ""
    return (
        f"{samples} samples cannot show an accuracy drop of {analysis.bar.max_drop:g}, which takes "
        f"{needed}; closeness to the float model decides"
    )


def _estimated(analysis: Analysis, peaks: LayerRoofline) -> Costs:
    """Return a cost per layer and dtype, with its gain, or why it is not convertible."""
    works = {layer.index: _work(analysis, layer) for layer in analysis.layers}
    total = sum(peaks.seconds(w, "float32") for w in works.values() if w is not None)
    costs: Costs = {}
    for dtype in analysis.dtypes:
        for layer in analysis.layers:
            reason = _why_not(analysis, layer, dtype)
            work = works[layer.index]
            saved = None
            if work is not None and reason is None:
                saved = peaks.seconds(work, "float32") - peaks.seconds(work, dtype)
            costs[layer.index, dtype] = LayerCost(
                index=layer.index,
                name=layer.name,
                op=layer.op,
                dtype=dtype,
                source=ESTIMATED if reason is None else NOT_CONVERTIBLE,
                saved_s=saved,
                gain=saved / total if saved is not None and total > 0 else 0.0,
                reason=reason or "",
            )
    return costs


def _why_not(analysis: Analysis, layer: TableRow, dtype: str) -> str | None:
    node = analysis.nodes.get(layer.name)
    return "it is in a branch" if node is None else analysis.setting.why_not(node, dtype)


def _work(analysis: Analysis, layer: TableRow) -> LayerWork | None:
    node, graph = analysis.nodes.get(layer.name), analysis.setting.graph
    if node is None:
        return None
    return work_of(layer.flops, [graph.dims(n) for n in (*node.input[:2], node.output[0])])


@dataclasses.dataclass(frozen=True)
class _Start:
    """Start of a dtype's skip sets: its converter, and the verdict on all layers converted.

    Attributes:
        convert: The converter.
        verdict: The verdict.
        seconds: Time of the conversion and the measurement.
    """

    convert: Convert
    verdict: JointVerdict
    seconds: float


def _all_converted(analysis: Analysis, costs: Costs, deadline: float) -> dict[str, _Start]:
    """Judge the model with all layers converted; the judge learns which samples are the worst."""
    setting = analysis.setting
    starts = {}
    for dtype in analysis.dtypes:
        start = time.monotonic()
        names = [c.name for c in costs.values() if c.dtype == dtype and is_convertible(c)]
        quantizer = None
        if dtype == "int8":
            assert setting.ranges is not None
            quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)
        convert = converter(setting.model, dtype, names, quantizer)
        verdict = analysis.judge(convert(()), dtype, deadline, patient=True)
        starts[dtype] = _Start(convert, verdict, time.monotonic() - start)
    return starts


def _skip_sets(
    analysis: Analysis,
    costs: Costs,
    starts: dict[str, _Start],
    climb_deadline: float,
    deadline: float,
) -> list[SkipSet]:
    """Measure skip sets of each dtype; a dtype that fails with all layers converted gets time."""
    weights = [0.0 if start.verdict.holds else _LADDER_WEIGHT[d] for d, start in starts.items()]
    ladders = []
    for at, (dtype, start) in enumerate(starts.items()):
        share = weights[at] / sum(weights[at:]) if weights[at] else 0.0
        of_dtype = [cost for cost in costs.values() if cost.dtype == dtype]
        ladder = Ladder(of_dtype, start.convert, analysis.judge, analysis.bar, analysis.tell)
        ladder.climb(start.verdict, part_of_time(climb_deadline, share))
        ladders.append(ladder)
    for ladder in ladders:
        ladder.convert_again(climb_deadline)
        ladder.insure(deadline)
        ladder.confirm(deadline)
    return [found for ladder in ladders for found in ladder.sets]
