"""Predicted time of each layer in each dtype, before any layer is timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.roofline import LayerRoofline, LayerWork, work_of

FLOAT = "float32"


@dataclasses.dataclass(frozen=True)
class LayerTimes:
    """Predicted times of single layers.

    Attributes:
        seconds: Seconds by layer index and dtype. A layer has float32 and all analysed dtypes, or
            is missing, since its shapes are not known.
        compute_bound: Indices of the layers that compute bounds in float32, by the roofline.
        bandwidth: Bytes per second of tensors between layers.
    """

    seconds: Mapping[tuple[int, str], float]
    compute_bound: frozenset[int]
    bandwidth: float


def roofline_times(analysis: Analysis, peaks: LayerRoofline) -> LayerTimes:
    """Return the times that a roofline predicts."""
    works = {layer.index: work_of_layer(analysis, layer) for layer in analysis.layers}
    known = {index: work for index, work in works.items() if work is not None}
    return LayerTimes(
        {
            (index, dtype): peaks.seconds(work, dtype)
            for index, work in known.items()
            for dtype in (FLOAT, *analysis.dtypes)
        },
        frozenset(index for index, work in known.items() if peaks.is_compute_bound(work)),
        peaks.bandwidth,
    )


def work_of_layer(analysis: Analysis, layer: TableRow) -> LayerWork | None:
    """Return the FLOPs and bytes of a layer; None in a branch, whose shapes are not known."""
    node, graph = analysis.nodes.get(layer.name), analysis.setting.graph
    if node is None:
        return None
    return work_of(layer.flops, [graph.dims(n) for n in (*node.input[:2], node.output[0])])
