"""Measure the error of converting each layer alone, on recorded values of the float model.

The error of the outputs over the error of the layer's own result is the layer's gain, a property of
what is downstream. The dtype with the largest own error measures it; where time is short, errors of
the layer's other dtypes follow from it, and a layer that is not reached has the median gain.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np

from tvmopt.choices import LOW_DTYPES
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.evaluate.dataset import Batch
from tvmopt.frontend.layers import Layer as TableRow
from tvmopt.quantize.analysis import Analysis, Costs, is_convertible, part_of_time
from tvmopt.quantize.downstream import Downstream, Recording
from tvmopt.quantize.probe import Errors, Probe, ProbedLayer
from tvmopt.quantize.report import ESTIMATED, MEASURED

_RECORD_BYTES = 2**30
# Batches for single layers: the loss of 16-bit floats varies little between batches.
_SINGLE_BATCHES = {dtype: 3 if dtype in HALF_FLOATS else 8 for dtype in LOW_DTYPES}
# Where dtypes of one layer are compared. Three and eight of the worst batches said that bfloat16 is
# worse than int8 in the first layers of efficientnet_lite0, and that cost accuracy:
# benchmarks/results/2026-11-28-near-ties.md.
_COMPARED_BATCHES = 16
_SHARE_OF_RECORDING = 0.3
_BROKEN = 1.0  # error power of a layer's own result, over the power of the result


def with_errors(
    analysis: Analysis, costs: Costs, deadline: float, further: float, *, compared: bool = False
) -> tuple[Costs, list[str]]:
    """Return costs with errors measured on some samples, and notes on what is missing.

    Each layer alone is converted, and run with its downstream nodes. Layers with the largest error
    of their own result run first, so that unreached layers are benign.

    Args:
        analysis: The analysis.
        costs: A cost for each layer and dtype.
        deadline: Value of ``time.monotonic()`` after which no other layer starts.
        further: Value after which a layer is measured in one dtype and on one batch only.
        compared: Whether errors of a layer's dtypes must compare: all are then measured on the same
            samples, evenly spread, a second 16-bit float on fewer. Else the worst samples are
            taken, and fewer for 16-bit floats.
    """
    single = _SingleLayers.record(analysis, costs, compared, deadline)
    own = single.own_errors(costs, deadline)
    costs = costs | own
    order = sorted(
        single.layers, key=lambda r: -max(costs[r.index, dtype].error for dtype in analysis.dtypes)
    )
    for done, layer in enumerate(order):
        now = time.monotonic()
        if now >= deadline:
            break
        until = now + (further - now) / (len(order) - done)
        costs |= single.errors(layer, costs, until)
        if analysis.progress is not None:
            analysis.progress(done + 1, len(order), f"sensitivity: {layer.name}")
    return costs | _estimated_by_gain(costs, own), _notes_on_errors(costs, single)


def _estimated_by_gain(costs: Costs, own: Costs) -> Costs:
    """Return the estimated costs that the gain of their layer, or the median gain, changes.

    Args:
        costs: Errors of the outputs where they were measured.
        own: Errors of the layers' own results, of all layers and dtypes.
    """
    gains: dict[int, float] = {}
    for key in sorted(own, key=lambda key: own[key].error):  # the largest error says the most
        error, own_error = costs[key].error, own[key].error
        if costs[key].source == MEASURED and math.isfinite(error) and 0 < own_error < _BROKEN:
            gains[key[0]] = error / own_error
    median = statistics.median(gains.values()) if gains else 1.0
    return {
        key: dataclasses.replace(costs[key], error=min(1.0, gains.get(key[0], median) * cost.error))
        for key, cost in own.items()
        if costs[key].source == ESTIMATED and cost.error < _BROKEN
    }


@dataclasses.dataclass(frozen=True)
class _SingleLayers:
    """Measure layers alone, on recorded intermediate values of the float model.

    Attributes:
        analysis: The analysis.
        layers: Layers that some dtype can convert.
        parts: Nodes downstream of each layer, by layer index.
        batches: The samples.
        counts: Number of them for each dtype.
        recording: Intermediate values on those that fit into memory.
    """

    analysis: Analysis
    layers: Sequence[TableRow]
    parts: dict[int, Downstream]
    batches: Sequence[Batch]
    counts: dict[str, int]
    recording: Recording

    @classmethod
    def record(
        cls, analysis: Analysis, costs: Costs, compared: bool, deadline: float
    ) -> _SingleLayers:
        """Record all values that the layers and their downstream nodes read.

        Recording has a part of the time until ``deadline``; the rest is for the errors.
        """
        nodes, graph = analysis.nodes, analysis.setting.graph
        open_layers = {cost.index for cost in costs.values() if is_convertible(cost)}
        layers = [layer for layer in analysis.layers if layer.index in open_layers]
        parts = {layer.index: Downstream(graph, nodes[layer.name].output[0]) for layer in layers}
        names = {name for part in parts.values() for name in part.inputs}
        names.update(name for layer in layers for name in nodes[layer.name].input)
        whole = analysis.whole_dtypes if compared else ()
        counts = {d: _COMPARED_BATCHES if d in whole else _SINGLE_BATCHES[d]
                  for d in analysis.dtypes}  # fmt: skip
        most = min(max(counts.values()), len(analysis.batches))
        spread = np.linspace(0, len(analysis.batches) - 1, most).round().astype(int)
        chosen = spread.tolist() if compared else analysis.judge.hardest(most)
        batches = [analysis.batches[at] for at in chosen]
        inputs = [b.inputs for b in batches]
        until = part_of_time(deadline, _SHARE_OF_RECORDING)
        recording = Recording(analysis.setting.model, sorted(names), inputs, _RECORD_BYTES, until)
        return cls(analysis, layers, parts, batches, counts, recording)

    def own_errors(self, costs: Costs, deadline: float) -> Costs:
        """Return costs with the error of each layer's own result on one batch.

        Layers that are not reached before ``deadline`` get the largest error of the others.
        """
        example = self.recording.values[0]
        found: Costs = {}
        for layer in self.layers:
            if found and time.monotonic() >= deadline:
                break
            probe = ProbedLayer(self.analysis.setting, self.analysis.nodes[layer.name], example)
            for dtype, error in probe.own_errors(example, self._dtypes(layer, costs)).items():
                key = layer.index, dtype
                found[key] = dataclasses.replace(costs[key], error=error)
        worst = {d: max((c.error for (_, of), c in found.items() if of == d), default=1.0)
                 for d in self.analysis.dtypes}  # fmt: skip
        for layer in self.layers:
            for dtype in self._dtypes(layer, costs):
                key = layer.index, dtype
                if key not in found:
                    found[key] = dataclasses.replace(costs[key], error=worst[dtype])
        return found

    def errors(self, layer: TableRow, costs: Costs, until: float) -> Costs:
        """Return costs of ``layer`` with errors of the outputs, on batches until ``until``.

        Of dtypes that time does not reach there is no cost.
        """
        example, node = self.recording.values[0], self.analysis.nodes[layer.name]
        probe = Probe(self.analysis.setting, node, self.parts[layer.index], example)

        def by_own_error(dtype: str) -> float:
            error = costs[layer.index, dtype].error
            return -error if error < _BROKEN else 0.0

        wanted = sorted(self._dtypes(layer, costs), key=by_own_error)
        scores = self.analysis.judge.class_scores
        errors = {dtype: Errors(self.recording.output_names, scores) for dtype in wanted}
        for at, values in enumerate(self.recording.values):
            for place, dtype in enumerate(wanted):
                if at == 0 and place > 0 and time.monotonic() >= until:
                    break
                if at < self.counts[dtype]:
                    errors[dtype].add(self.batches[at], self.recording, at, probe(values, dtype))
            if time.monotonic() >= until:
                break
        return {
            (layer.index, dtype): dataclasses.replace(
                costs[layer.index, dtype],
                source=MEASURED,
                error=found.error,
                cosine=found.cosine,
                disagreement=found.disagreement,
                samples=found.samples,
            )
            for dtype, found in errors.items()
            if found.samples
        }

    def _dtypes(self, layer: TableRow, costs: Costs) -> list[str]:
        return [d for d in self.analysis.dtypes if is_convertible(costs[layer.index, d])]


def _notes_on_errors(costs: Costs, single: _SingleLayers) -> list[str]:
    batches, recording = single.batches, single.recording
    notes = []
    estimated = sum(cost.source == ESTIMATED for cost in costs.values())
    if estimated:
        notes.append(
            f"{estimated} of {len(costs)} costs are estimated from the error of the layer's own "
            "result, by its gain in another dtype or the median gain, for time ran out; give a "
            "larger time limit to measure them"
        )
    if len(recording.values) < len(batches):
        why = f": their inner values take more than {_RECORD_BYTES // 2**30} GiB"
        if recording.is_out_of_time:
            why = ", for time"
        notes.append(
            f"single layers were measured on {len(recording.values)} of {len(batches)} batches{why}"
        )
    short = sum(
        c.source == MEASURED and c.samples < sum(b.valid for b in batches[: single.counts[c.dtype]])
        for c in costs.values()
    )
    if short:
        notes.append(f"{short} of {len(costs)} costs were measured on fewer samples, for time")
    return notes
