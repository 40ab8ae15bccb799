"""Predicted gain of each layer in each dtype, before anything is measured."""

from __future__ import annotations

from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.quantize.analysis import Analysis, Costs
from tvmopt.quantize.layer_times import FLOAT, LayerTimes
from tvmopt.quantize.report import ESTIMATED, NOT_CONVERTIBLE, LayerCost


def estimated_costs(analysis: Analysis, times: LayerTimes) -> Costs:
    """Return a cost per layer and dtype, with its gain, or why it is not convertible."""
    seconds = times.seconds
    total = sum(value for (_, dtype), value in seconds.items() if dtype == FLOAT)
    costs: Costs = {}
    for dtype in analysis.dtypes:
        for layer in analysis.layers:
            reason = _why_not(analysis, layer, dtype)
            saved = None
            if (layer.index, dtype) in seconds and reason is None:
                saved = seconds[layer.index, FLOAT] - seconds[layer.index, dtype]
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
