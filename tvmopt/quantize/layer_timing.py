"""Add measured seconds of single layers to their costs, the most expensive shapes first."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import onnx

from tvmopt.device.target import TargetSpec
from tvmopt.quantize.analysis import Analysis, Costs, is_convertible
from tvmopt.quantize.graph import Graph, attributes
from tvmopt.quantize.report import LayerCost


def with_latency(
    analysis: Analysis,
    costs: Costs,
    target: TargetSpec,
    deadline: float,
    least_part: float = 0.0,
) -> Costs:
    """Return costs with measured seconds, as :func:`.latency.layer_seconds` measures them."""
    from tvmopt.quantize.latency import layer_seconds

    setting = analysis.setting
    ordered = in_timing_order(setting.graph, analysis.nodes, list(costs.values()))
    jobs = [(analysis.nodes[c.name], dtype) for c in ordered for dtype in ("float32", c.dtype)]
    seconds = layer_seconds(setting.model, jobs, setting.scheme, target, deadline, least_part)
    return {
        key: dataclasses.replace(
            cost,
            latency_s=seconds.get((cost.name, cost.dtype)),
            float_latency_s=seconds.get((cost.name, "float32")),
        )
        for key, cost in costs.items()
    }


def in_timing_order(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], costs: Sequence[LayerCost]
) -> list[LayerCost]:
    """Return the convertible layers and dtypes in the order in which to time them.

    The shape with the largest predicted gain over all its layers comes first, and before the second
    shape of one operator the first shape of each: layers that time does not reach are predicted
    from timed ones (:func:`.layer_choices.layer_choices`). Grouped convolutions are an operator of
    their own.
    """
    gains: dict[Hashable, float] = defaultdict(float)
    keys: dict[tuple[str, str], tuple[Hashable, Hashable]] = {}
    able = [cost for cost in costs if is_convertible(cost)]
    for cost in able:
        node = nodes[cost.name]
        kind: Hashable = cost.op, cost.dtype, attributes(node).get("group", 1) == 1
        shapes = tuple(tuple(graph.dims(name) or ()) for name in (*node.input[:2], node.output[0]))
        keys[cost.name, cost.dtype] = kind, (kind, shapes)
        gains[kind, shapes] += cost.saved_s or 0.0
    first: dict[Hashable, Hashable] = {}
    for kind, shape in sorted(keys.values(), key=lambda pair: -gains[pair[1]]):
        first.setdefault(kind, shape)

    def rank(cost: LayerCost) -> tuple[bool, float]:
        kind, shape = keys[cost.name, cost.dtype]
        return shape != first[kind], -gains[shape]

    return sorted(able, key=rank)


def why_untimed(target: TargetSpec | None) -> str:
    """Return why layers cannot be timed on ``target``; empty when they can."""
    if target is None or not target.missing_on_host():
        return ""
    return f"layers are not timed: target {target.device} does not run on this machine"


def notes_on_latency(costs: Costs) -> list[str]:
    """Return how many layers and types are not timed, if any."""
    untimed = sum(c.latency_s is None and is_convertible(c) for c in costs.values())
    if not untimed:
        return []
    if all(cost.latency_s is None for cost in costs.values()):
        return ["layers are not timed, which takes longer than the time allows, but predicted"]
    return [
        f"{untimed} of {len(costs)} layers and types are not timed: time ran out or they "
        "do not compile alone"
    ]
