"""Choose a dtype for each layer: the least predicted time that meets the accuracy bar.

Choices from the fastest one to float32 come from :mod:`.layer_choices`. Errors of single layers do
not add up exactly, so a search over these choices, and then between two of them, measures the model
with all layers converted together, after a correction of its biases for these dtypes
(:mod:`.mixed_biases`). The fastest choice that meets the bar wins. Where time is short, few choices
are measured: the first ones are where the drop, taken to grow with the predicted loss, would be
within the bar.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvmopt.device import dtypes as dtype_table
from tvmopt.quantize.analysis import Analysis, Costs
from tvmopt.quantize.dtype_map import DtypeMap, fastest, half_layers, whole_model_dtype
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_choices import (
    FLOAT,
    LayerChoice,
    between,
    dtype_changes,
    layer_choices,
    pareto_choices,
    total_seconds,
)
from tvmopt.quantize.loss_bound import loss_bound
from tvmopt.quantize.mixed_biases import MixedBiases
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.roofline import LayerRoofline, LayerWork

# Part of the allowed drop that is aimed at between two measurements.
_AIMED_DROP = 0.7


def choose_layer_dtypes(
    analysis: Analysis,
    costs: Costs,
    works: Mapping[int, LayerWork | None],
    peaks: LayerRoofline,
    deadline: float,
    known: Mapping[str, JointVerdict] | None = None,
) -> list[DtypeMap]:
    """Return the maps that were measured; one of them meets the bar, float32 if no other does.

    The fastest one that meets the bar has its biases.

    Args:
        analysis: The analysis.
        costs: Error of each layer and dtype, and seconds where they were measured.
        works: Work of each layer by index, for layers that were not timed.
        peaks: Peaks of the target.
        deadline: Value of ``time.monotonic()`` after which no new measurement starts.
        known: Verdicts on all samples for the model with every layer in one dtype that can have it.
    """
    choices = layer_choices(costs, works, peaks)
    changes = dtype_changes(analysis.setting.graph, choices, peaks.bandwidth)
    measure = _Measure(analysis, choices, changes, known or {})
    _search(choices, changes, measure, deadline)
    best = fastest(measure.found)
    return [
        found if found is best else dataclasses.replace(found, biases={}) for found in measure.found
    ]


def _search(
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
    measure: _Measure,
    deadline: float,
) -> None:
    """Measure choices until the fastest one that meets the bar is known, or time runs out."""
    candidates = pareto_choices(choices, changes)
    # Where the fastest choice meets the bar, nothing else needs to be measured.
    if len(candidates) == 1 or measure(candidates[0], deadline).holds:
        return
    at = _bisected(candidates, measure, deadline)
    if any(choice.never for choice in choices) and at == len(candidates) - 1:
        # No layer is float32 beside 16-bit floats: all layers are, or none.
        measure.accept_halves(deadline)
        return
    if at > 0:
        finer = between(candidates[at - 1], candidates[at], choices, changes)
        _bisected([candidates[at - 1], *finer, candidates[at]], measure, deadline)


def _bisected(candidates: Sequence[tuple[int, ...]], measure: _Measure, deadline: float) -> int:
    """Measure choices between the first, which misses the bar, and the last, which meets it.

    Returns:
        The position of the first choice that is known to meet the bar.
    """
    low, high, aims = 0, len(candidates) - 1, True
    while high - low > 1 and time.monotonic() < deadline:
        middle = (low + high) // 2
        if aims:
            middle = min(measure.expected_to_hold(candidates, low, middle), high - 1)
        if measure(candidates[middle], deadline).holds:
            high = middle
        else:
            low = middle
        aims = not aims
    return high


def emulated(
    model: onnx.ModelProto, quantizer: Quantizer | None, by_name: Mapping[str, str]
) -> onnx.ModelProto:
    """Return the model with its layers in their dtypes, for ONNX Runtime.

    Args:
        model: The float model.
        quantizer: Its quantizer; needed where layers have dtype int8.
        by_name: dtype of each layer that some dtype can convert, by node name.
    """
    if "int8" in by_name.values():
        assert quantizer is not None
        model = quantizer([name for name, dtype in by_name.items() if dtype != "int8"])
    for dtype in sorted(set(by_name.values()) & set(dtype_table.HALF_FLOATS)):
        model = cast_layers(model, dtype, {name for name, d in by_name.items() if d == dtype})
    return model


class _Measure:
    """Measure the model with all layers in chosen dtypes; ``found`` holds every map so far."""

    def __init__(
        self,
        analysis: Analysis,
        choices: Sequence[LayerChoice],
        changes: Mapping[tuple[int, int], np.ndarray],
        known: Mapping[str, JointVerdict],
    ) -> None:
        setting = analysis.setting
        self._analysis, self._choices, self._changes = analysis, choices, changes
        self._known = known
        self._by_choice: dict[tuple[int, ...], DtypeMap] = {}
        self._quantizer: Quantizer | None = None
        self._mixed_biases: MixedBiases | None = None
        self._biases_s = 0.0  # that the last correction of biases took
        self.found = [self.float_model()]
        if setting.ranges is not None:
            self._quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)

    def __call__(self, choice: Sequence[int], deadline: float) -> DtypeMap:
        pairs = list(zip(self._choices, choice, strict=True))
        by_name = {c.name: c.dtypes[at] for c, at in pairs}
        by_index = {c.index: c.dtypes[at] for c, at in pairs if at}
        ranges, judged = None, self._verdict_of_one_dtype(by_name)
        if judged is None:
            ranges = self._corrected(by_name, deadline)
            setting, quantizer = self._analysis.setting, self._quantizer
            if ranges is not None:
                quantizer = Quantizer(setting.model, ranges, setting.scheme)
            model = emulated(setting.model, quantizer, by_name)
            judged = self._analysis.judge(model, whole_model_dtype(by_name.values()), deadline)
        found = DtypeMap(
            layers=tuple(by_index),
            dtypes=tuple(by_index.values()),
            predicted_s=total_seconds(choice, self._choices, self._changes),
            predicted_loss=self._predicted_loss(choice),
            cosine=judged.accuracy.cosine,
            agreement=judged.accuracy.agreement,
            drop=judged.accuracy.drop,
            samples=judged.accuracy.samples,
            holds=judged.holds,
            mean_loss=judged.mean_loss,
            loss_bound=loss_bound(judged.losses),
            biases={} if ranges is None else {**ranges.biases, **ranges.half_biases},
        )
        self.found.append(found)
        self._by_choice[tuple(choice)] = found
        self._tell(found)
        return found

    def expected_to_hold(self, candidates: Sequence[tuple[int, ...]], low: int, middle: int) -> int:
        """Return the first position after ``low`` whose drop is expected to be within the bar.

        The drop is taken to be proportional to the predicted loss, from what was measured at
        ``low``; ``middle`` where that was not measured, or shows no drop.
        """
        worst = self._by_choice.get(candidates[low])
        if worst is None or not worst.drop > 0 or not worst.predicted_loss > 0:
            return middle
        allowed = _AIMED_DROP * self._analysis.bar.max_drop * worst.predicted_loss / worst.drop
        within = (
            at
            for at in range(low + 1, len(candidates))
            if self._predicted_loss(candidates[at]) <= allowed
        )
        return next(within, len(candidates) - 1)

    def _predicted_loss(self, choice: Sequence[int]) -> float:
        """Return the cosine loss, half the error power, added over the layers."""
        return sum(c.errors[at] for c, at in zip(self._choices, choice, strict=True)) / 2

    def _verdict_of_one_dtype(self, by_name: Mapping[str, str]) -> JointVerdict | None:
        """Return what is known where all layers that can have one dtype have it; else None."""
        [dtype, *others] = set(by_name.values()) - {FLOAT} or {FLOAT}
        can = {c.name for c in self._choices if dtype in c.dtypes}
        has = {name for name, of in by_name.items() if of == dtype}
        return self._known.get(dtype) if not others and can == has else None

    def _corrected(self, by_name: Mapping[str, str], deadline: float) -> Ranges | None:
        """Return ranges with biases for these dtypes; None where the calibration's biases stay.

        They stay where all layers are int8, where the calibration did not fit layers, and where
        time is short.
        """
        setting = self._analysis.setting
        dtypes = set(by_name.values())
        if setting.ranges is None or not setting.ranges.roundings or "int8" not in dtypes:
            return None
        start = time.monotonic()
        if len(dtypes) < 2 or start + self._biases_s > deadline:
            return None
        if self._mixed_biases is None:
            inputs = [batch.inputs for batch in self._analysis.batches]
            self._mixed_biases = MixedBiases(setting.model, setting.ranges, inputs, setting.scheme)
        found = self._mixed_biases(by_name)
        self._biases_s = time.monotonic() - start
        return found

    def accept_halves(self, deadline: float) -> None:
        """Measure all layers in 16-bit floats, which must not be shown to lose more than allowed.

        Few samples cannot show with 95% confidence that a drop is within the limit, even one of
        rounding to 16 bits. The drop itself then decides.
        """
        found = self([c.half for c in self._choices], deadline)
        was_measured = found.samples == sum(b.valid for b in self._analysis.batches)
        if not found.holds and was_measured and found.drop <= self._analysis.bar.max_drop:
            self.found[-1] = dataclasses.replace(found, holds=True)

    def float_model(self) -> DtypeMap:
        """Return the map in which all layers stay float32."""
        seconds = total_seconds([0] * len(self._choices), self._choices, self._changes)
        return DtypeMap((), (), seconds, 0.0, 1.0, None, 0.0, 0, True)

    def _tell(self, found: DtypeMap) -> None:
        if self._analysis.progress is not None:
            count = len(self._analysis.layers)
            halves = len(half_layers(found.by_layer))
            text = (
                f"{len(found.layers) - halves} layers in int8, {halves} in 16 bits, cosine "
                f"{found.cosine:.4f}"
            )
            self._analysis.progress(count, count, text)
