"""Inputs that all phases of the sensitivity analysis read."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import onnx

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.evaluate.dataset import Batch
from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.joint import Judge
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.ranges import Progress
from tvmopt.quantize.report import NOT_CONVERTIBLE, LayerCost, SkipSet

Costs = dict[tuple[int, str], LayerCost]
"""Costs by layer index and dtype."""


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Data that every phase of the analysis reads.

    Attributes:
        setting: The model, its graph, and the quantization settings.
        layers: The layer table.
        nodes: ONNX nodes by name.
        dtypes: dtypes to analyse.
        batches: The samples.
        bar: Accuracy bar of a converted model.
        judge: Measures a converted model on the samples.
        progress: Called with layers done, their number, and a description.
        mixes: Whether each layer gets a dtype, in place of skip sets for each dtype.
    """

    setting: Setting
    layers: Sequence[TableRow]
    nodes: dict[str, onnx.NodeProto]
    dtypes: Sequence[str]
    batches: Sequence[Batch]
    bar: Bar
    judge: Judge
    progress: Progress | None
    mixes: bool = False

    @property
    def whole_dtypes(self) -> list[str]:
        """The dtypes in which the whole model is measured: of 16-bit floats that mix, the first.

        A second one is for single layers.
        """
        first = next((d for d in self.dtypes if d in HALF_FLOATS), "")
        return [d for d in self.dtypes if not self.mixes or d not in HALF_FLOATS or d == first]

    def tell(self, found: SkipSet) -> None:
        """Report a measured skip set."""
        if self.progress is not None:
            text = f"{found.dtype}: {len(found.layers)} layers skipped, cosine {found.cosine:.4f}"
            self.progress(len(self.layers), len(self.layers), text)


def is_convertible(cost: LayerCost) -> bool:
    """Return whether the layer can be converted to the dtype."""
    return cost.source != NOT_CONVERTIBLE


def part_of_time(deadline: float, share: float) -> float:
    """Return the deadline of a phase that may take ``share`` of the remaining time."""
    now = time.monotonic()
    return now + share * max(0.0, deadline - now)
