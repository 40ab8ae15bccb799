"""Predicted gain of each layer in each dtype, by its roofline, before anything is measured."""

from __future__ import annotations

from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.quantize.analysis import Analysis, Costs
from tvmopt.quantize.report import ESTIMATED, NOT_CONVERTIBLE, LayerCost
from tvmopt.quantize.roofline import LayerRoofline, LayerWork, work_of


def estimated_costs(analysis: Analysis, peaks: LayerRoofline) -> Costs:
    """Return a cost per layer and dtype, with its gain, or why it is not convertible."""
    works = {layer.index: work_of_layer(analysis, layer) for layer in analysis.layers}
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


def work_of_layer(analysis: Analysis, layer: TableRow) -> LayerWork | None:
    """Return the FLOPs and bytes of a layer; None in a branch, whose shapes are not known."""
    node, graph = analysis.nodes.get(layer.name), analysis.setting.graph
    if node is None:
        return None
    return work_of(layer.flops, [graph.dims(n) for n in (*node.input[:2], node.output[0])])
