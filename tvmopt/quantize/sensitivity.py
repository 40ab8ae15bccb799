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

from tvmopt.config import LOW_DTYPES
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import Batch, Dataset
from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.frontend.layers import layer_table
from tvmopt.frontend.prepare import Prepared
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.checks import check_float
from tvmopt.quantize.downstream import Downstream, Recording, new_session
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import Judge, converter
from tvmopt.quantize.probe import Errors, Probe, ProbedLayer, Setting
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Progress, Ranges, collect_ranges
from tvmopt.quantize.report import (
    ESTIMATED,
    MEASURED,
    NOT_CONVERTIBLE,
    LayerCost,
    Sensitivity,
    SkipSet,
)
from tvmopt.quantize.roofline import LayerRoofline, LayerWork, roofline, roofline_of, work_of
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.skipsets import Ladder

_RECORD_BYTES = 2**30
# Batches for single layers: the loss of 16-bit floats varies little between batches.
_SINGLE_BATCHES = {dtype: 3 if dtype in HALF_FLOATS else 8 for dtype in LOW_DTYPES}
_SHARE_OF_SINGLE_LAYERS = 0.4
_SHARE_OF_SKIP_SETS = 0.6  # of the remaining time, when layers are also timed
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
    samples: int = 32,
    max_drop: float = 0.01,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sensitivity:
    """Measure error and gain of converting each layer, and propose skip sets.

    Args:
        model: A prepared float32 model.
        data: Calibration data, which evaluation must not use.
        dtypes: dtypes to analyse, of ``LOW_DTYPES``.
        scheme: Quantization scheme of int8; by default :class:`Scheme`'s.
        ranges: Ranges of the activations; by default collected from the samples.
        target: Target whose peaks determine the gain, and CPU on which layers are timed. Without
            a target, the peaks are this machine's and nothing is timed.
        time_limit_s: Time limit in seconds; work in progress may exceed it.
        samples: Number of samples, chosen from the data with ``seed``.
        max_drop: Accuracy that a skip set may lose, see :class:`~tvmopt.quantize.bar.Bar`.
        seed: Seed of the sample choice.
        progress: Called with layers done, their number, and a description.

    Raises:
        ConfigError: When a parameter is invalid, or the model is quantized or not float32.
        ModelError: When ONNX Runtime cannot run the model on the data.
    """
    start = time.monotonic()
    _check(dtypes, time_limit_s, samples)
    bar = Bar(max_drop)
    scheme = scheme or Scheme()
    proto = model.model if isinstance(model, Prepared) else _with_types(model)
    check_float(proto)
    chosen = _choose(data, samples, seed)
    batches = list(chosen.batches())
    if "int8" in dtypes and ranges is None:
        ranges = collect_ranges(proto, [b.inputs for b in batches], scheme, progress)
    quantizer = None
    if "int8" in dtypes:
        assert ranges is not None
        quantizer = Quantizer(proto, ranges, scheme)

    graph = Graph(proto.graph)
    setting = Setting(proto, graph, scheme, ranges)
    nodes = {node.name: node for node in graph.nodes}
    layers = layer_table(proto)
    peaks = roofline_of(target) if target is not None else roofline()
    costs = _without_measuring(setting, layers, nodes, dtypes, peaks)

    # All layers converted: the start of the skip sets, and the choice of the worst samples.
    deadline = start + time_limit_s
    session = new_session(proto)
    judge = Judge(batches, [session.run(None, b.inputs) for b in batches], bar)
    converters = {
        dtype: converter(proto, dtype, _convertible_names(costs, dtype), quantizer)
        for dtype in dtypes
    }
    verdicts = {
        dtype: judge(converters[dtype](()), dtype, deadline, patient=True) for dtype in dtypes
    }

    # Single layers on the worst samples: run the converted layer and its downstream nodes.
    reached = [layer for layer in layers if any(_open(costs, layer, d) for d in dtypes)]
    parts = {layer.index: Downstream(graph, nodes[layer.name].output[0]) for layer in reached}
    names = {name for part in parts.values() for name in part.inputs}
    names.update(name for layer in reached for name in nodes[layer.name].input)
    hardest = [batches[at] for at in judge.hardest(max(_SINGLE_BATCHES[d] for d in dtypes))]
    recording = Recording(proto, sorted(names), [b.inputs for b in hardest], _RECORD_BYTES)
    single_deadline = time.monotonic() + _SHARE_OF_SINGLE_LAYERS * max(
        0.0, deadline - time.monotonic()
    )
    costs = _measure_layers(
        setting, reached, nodes, parts, recording, hardest, costs, single_deadline, progress
    )
    notes = _notes(costs, hardest, recording)

    # Skip sets: many layers converted together.
    timed = target is not None and target.gpu is None and not target.missing_on_host()
    if target is not None and not timed:
        why = "is a GPU" if target.gpu is not None else "does not run on this machine"
        notes.append(f"layers are not timed: target {target.device} {why}")
    ladder_deadline = time.monotonic() + (deadline - time.monotonic()) * (
        _SHARE_OF_SKIP_SETS if timed else 1.0
    )
    told = _teller(progress, len(layers))
    ladders = []
    for at, dtype in enumerate(dtypes):
        weights = [0.0 if verdicts[d].holds else _LADDER_WEIGHT[d] for d in dtypes[at:]]
        share = weights[0] / sum(weights) if weights[0] else 0.0
        until = time.monotonic() + share * (ladder_deadline - time.monotonic())
        of_dtype = [cost for cost in costs.values() if cost.dtype == dtype]
        ladders.append(Ladder(of_dtype, converters[dtype], judge, bar, told))
        ladders[-1].climb(verdicts[dtype], until)
    sets: list[SkipSet] = []
    for ladder in ladders:
        ladder.convert_again(ladder_deadline)
        ladder.insure(deadline)
        sets += ladder.sets
    if timed:
        assert target is not None
        costs = _with_latency(setting, nodes, costs, target, deadline)
        untimed = sum(c.latency_s is None and c.source != NOT_CONVERTIBLE for c in costs.values())
        if untimed:
            notes.append(
                f"{untimed} of {len(costs)} layers and types are not timed: time ran out or they "
                "do not compile alone"
            )
    return Sensitivity(
        dtypes=tuple(dtypes),
        costs=tuple(costs.values()),
        skip_sets=tuple(sets),
        samples=chosen.samples,
        seconds=time.monotonic() - start,
        settings={
            "scheme": scheme.to_dict(),
            "bar": dataclasses.asdict(bar),
            "seed": seed,
            "time_limit_s": time_limit_s,
            "peaks": dataclasses.asdict(peaks),
        },
        notes=tuple(notes),
    )


Costs = dict[tuple[int, str], LayerCost]


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


def _without_measuring(
    setting: Setting,
    layers: Sequence[TableRow],
    nodes: dict[str, onnx.NodeProto],
    dtypes: Sequence[str],
    peaks: LayerRoofline,
) -> Costs:
    """Return an entry per layer and dtype, with its gain, or why it is not convertible."""
    works = {layer.index: _work(setting.graph, layer, nodes) for layer in layers}
    total = sum(peaks.seconds(w, "float32") for w in works.values() if w is not None)
    costs: Costs = {}
    for dtype in dtypes:
        for layer in layers:
            node = nodes.get(layer.name)
            reason = "it is in a branch" if node is None else setting.why_not(node, dtype)
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


def _convertible_names(costs: Costs, dtype: str) -> list[str]:
    convertible = [cost for cost in costs.values() if cost.source != NOT_CONVERTIBLE]
    return [cost.name for cost in convertible if cost.dtype == dtype]


def _work(graph: Graph, layer: TableRow, nodes: dict[str, onnx.NodeProto]) -> LayerWork | None:
    node = nodes.get(layer.name)
    if node is None:
        return None
    return work_of(layer.flops, [graph.dims(n) for n in (*node.input[:2], node.output[0])])


def _open(costs: Costs, layer: TableRow, dtype: str) -> bool:
    return costs[layer.index, dtype].source != NOT_CONVERTIBLE


def _measure_layers(
    setting: Setting,
    layers: Sequence[TableRow],
    nodes: dict[str, onnx.NodeProto],
    parts: dict[int, Downstream],
    recording: Recording,
    batches: Sequence[Batch],
    costs: Costs,
    deadline: float,
    progress: Progress | None,
) -> Costs:
    """Measure output errors for as many layers and samples as time allows.

    Layers with the largest error of their own result run first, so that unreached layers are
    benign.
    """
    out = dict(costs)
    dtypes = list(dict.fromkeys(dtype for _, dtype in costs))
    example = recording.values[0]
    for layer in layers:
        wanted = [dtype for dtype in dtypes if _open(costs, layer, dtype)]
        own = ProbedLayer(setting, nodes[layer.name], example).own_errors(example, wanted)
        for dtype, error in own.items():
            out[layer.index, dtype] = dataclasses.replace(out[layer.index, dtype], error=error)
    order = sorted(layers, key=lambda layer: -max(out[layer.index, d].error for d in dtypes))
    for done, layer in enumerate(order):
        now = time.monotonic()
        if now >= deadline:
            break
        until = now + (deadline - now) / (len(order) - done)
        wanted = [dtype for dtype in dtypes if _open(costs, layer, dtype)]
        probe = Probe(setting, nodes[layer.name], parts[layer.index], example)
        errors = {dtype: Errors(recording.output_names) for dtype in wanted}
        for at, values in enumerate(recording.values):
            for dtype in wanted:
                if at < _SINGLE_BATCHES[dtype]:
                    errors[dtype].add(batches[at], recording, at, probe(values, dtype))
            if time.monotonic() >= until:
                break
        for dtype, found in errors.items():
            out[layer.index, dtype] = dataclasses.replace(
                out[layer.index, dtype],
                source=MEASURED,
                error=found.error,
                cosine=found.cosine,
                disagreement=found.disagreement,
                samples=found.samples,
            )
        if progress is not None:
            progress(done + 1, len(order), f"sensitivity: {layer.name}")
    return out


def _with_latency(
    setting: Setting,
    nodes: dict[str, onnx.NodeProto],
    costs: Costs,
    target: TargetSpec,
    deadline: float,
) -> Costs:
    """Return costs with measured seconds; layers with the largest roofline gain first."""
    from tvmopt.quantize.latency import layer_seconds

    heaviest = sorted(
        (cost for cost in costs.values() if cost.source != NOT_CONVERTIBLE),
        key=lambda cost: -(cost.saved_s or 0.0),
    )
    jobs = [(nodes[c.name], dtype) for c in heaviest for dtype in ("float32", c.dtype)]
    seconds = layer_seconds(setting.model, jobs, setting.scheme, target, deadline)
    return {
        key: dataclasses.replace(
            cost,
            latency_s=seconds.get((cost.name, cost.dtype)),
            float_latency_s=seconds.get((cost.name, "float32")),
        )
        for key, cost in costs.items()
    }


def _notes(costs: Costs, batches: Sequence[Batch], recording: Recording) -> list[str]:
    notes = []
    estimated = sum(cost.source == ESTIMATED for cost in costs.values())
    if estimated:
        notes.append(
            f"{estimated} of {len(costs)} costs are estimated from the error of the layer's own "
            "result, for time ran out; give a larger time limit to measure them"
        )
    if len(recording.values) < len(batches):
        notes.append(
            f"single layers were measured on {len(recording.values)} of {len(batches)} batches: "
            f"their inner values take more than {_RECORD_BYTES // 2**30} GiB"
        )
    short = sum(
        c.source == MEASURED
        and c.samples < sum(b.valid for b in batches[: _SINGLE_BATCHES[c.dtype]])
        for c in costs.values()
    )
    if short:
        notes.append(f"{short} of {len(costs)} costs were measured on fewer samples, for time")
    return notes


def _teller(progress: Progress | None, total: int) -> Callable[[SkipSet], None]:
    def told(found: SkipSet) -> None:
        if progress is not None:
            progress(
                total,
                total,
                f"{found.dtype}: {len(found.layers)} layers skipped, cosine {found.cosine:.4f}",
            )

    return told
