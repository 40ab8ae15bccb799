"""Measure a model with all layers in chosen dtypes together."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.device import dtypes as dtype_table
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.dtype_map import DtypeMap, half_layers, whole_model_dtype
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.extrapolated_loss import ExtrapolatedLoss, measured_excess
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_choices import LayerChoice, total_seconds
from tvmopt.quantize.layer_times import FLOAT
from tvmopt.quantize.loss_bound import loss_bound
from tvmopt.quantize.mixed_biases import MixedBiases
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Ranges

# Part of the allowed loss that is aimed at between two measurements; the larger one where the last
# map missed the bar by little, so that little is extrapolated, and where a map within the bar is
# near it, so that nothing is.
_AIMED_PART, _NEAREST_PART = 0.7, 0.95
# Measurements that should fit into the remaining time, each on all samples: the worst ones alone
# would show a larger drop than all of them.
_MEASUREMENTS = 3
#: Batches, the worst, that show whether an assumed map is broken.
FEW = 4
# Part of the allowed drop that the samples of the calibration may lose by R2. PicoDet lost 1.3 and
# 1.5 times as much on others, where it had 8 and 12 of them.
_FITTED_PART = 0.7


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


class MapMeasurement:
    """Measure maps of dtypes; ``found`` holds every map so far.

    Args:
        analysis: The analysis.
        choices: The layers.
        changes: Seconds of changes of dtype, see :func:`.layer_choices.dtype_changes`.
        known: Verdicts on all samples for the model with every layer in one dtype that can have it.
        measurement_s: Seconds that a measurement is expected to take, until one was made.
    """

    def __init__(
        self,
        analysis: Analysis,
        choices: Sequence[LayerChoice],
        changes: Mapping[tuple[int, int], np.ndarray],
        known: Mapping[str, JointVerdict],
        measurement_s: float = 0.0,
    ) -> None:
        setting = analysis.setting
        self._analysis, self._choices, self._changes = analysis, choices, changes
        self._known = known
        self._measurement_s = measurement_s
        self._quantizer: Quantizer | None = None
        self._mixed_biases: MixedBiases | None = None
        self._biases_s = 0.0  # that the last correction of biases took
        self._setup_s = 0.0  # that the last measurement took for what is done once
        self._loss = ExtrapolatedLoss(is_counted=not analysis.judge.by_r2)
        for dtype, verdict in known.items():
            alone = [c.dtypes.index(dtype) if dtype in c.dtypes else 0 for c in choices]
            excess = self._excess(verdict, dtype)
            self._loss.add(self.predicted_loss(alone), excess)
        self.found = [self.float_model()]
        if setting.ranges is not None:
            self._quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)

    def __call__(self, choice: Sequence[int], deadline: float) -> DtypeMap:
        """Measure a choice, a position in ``LayerChoice.dtypes`` for every layer."""
        start, by_name = time.monotonic(), self._by_name(choice)
        ranges, judged = None, self._verdict_of_one_dtype(by_name)
        if judged is None:
            ranges = self._corrected(by_name, deadline)
            judged = self._judged(by_name, ranges, deadline)
            self._measurement_s = time.monotonic() - start - self._setup_s
        dtype = whole_model_dtype(by_name.values())
        if judged.is_cut:
            sound = len(judged.drops) >= FEW and self._is_sound(judged, dtype)
            return self._keep(choice, judged, ranges, holds=False, is_assumed=sound)
        self._loss.add(self.predicted_loss(choice), self._excess(judged, dtype))
        return self._keep(choice, judged, ranges, holds=judged.holds)

    def assume(self, choice: Sequence[int], deadline: float) -> bool:
        """Measure a choice on a few samples; assume that it meets the bar unless it is broken.

        The samples are the worst ones. Their outputs must be as close to the float model's as a
        converted model's must be in the end, or lose no more accuracy than allowed: of all samples,
        whose drop is estimated by its ratio to that of the worst ones in a known model.

        Returns:
            Whether it is assumed to meet the bar.
        """
        by_name = self._by_name(choice)
        ranges = self._corrected(by_name, deadline)
        judged = self._judged(by_name, ranges, deadline, most=FEW)
        sound = self._is_sound(judged, whole_model_dtype(by_name.values()))
        self._keep(choice, judged, ranges, holds=False, is_assumed=sound)
        return sound

    def _is_sound(self, judged: JointVerdict, dtype: str) -> bool:
        """Return whether a verdict on some of the samples lets the map be assumed.

        R2 is no count of rows: it tells the drop on the samples that were measured. On others the
        drop is larger, since weights and biases were fitted to these.
        """
        if self._analysis.judge.by_r2:
            return judged.accuracy.drop <= _FITTED_PART * self._analysis.bar.max_drop
        is_near = 1 - judged.accuracy.cosine <= dtype_table.dtype(dtype).cosine_loss
        drop = judged.accuracy.drop * self._all_over_some(judged.drops)
        return is_near or drop <= self._analysis.bar.max_drop

    def _all_over_some(self, some: Collection[int]) -> float:
        """Return the drop of all samples over that of some, in the known model that loses most."""
        known = max(self._known.values(), key=lambda v: v.accuracy.drop, default=None)
        if known is None or not some or not set(some) < set(known.drops):
            return 1.0
        of_some = statistics.fmean(known.drops[at] for at in some)
        return min(1.0, statistics.fmean(known.drops.values()) / of_some) if of_some > 0 else 1.0

    def may_hold(self, choice: Sequence[int]) -> bool:
        """Return whether what was measured lets the choice be expected to meet the bar."""
        allowed = self._loss.allowed(1.0)
        return allowed is None or self.predicted_loss(choice) <= allowed

    def is_known(self, choice: Sequence[int]) -> bool:
        """Return whether the choice needs no measurement."""
        return self._verdict_of_one_dtype(self._by_name(choice)) is not None

    @property
    def can_be_shown(self) -> bool:
        """Whether the samples show that the most accurate 16-bit float meets the bar.

        Samples that are too few for it are too few for int8.
        """
        halves = [v for dtype, v in self._known.items() if dtype in dtype_table.HALF_FLOATS]
        return not halves or any(verdict.holds for verdict in halves)

    def times_left(self, deadline: float) -> float:
        """Return how many measurements fit into the remaining time.

        Until a map with int8 layers can be chosen, one of few samples must fit behind them.
        """
        left = deadline - time.monotonic()
        if not self._has_integers:
            few = min(1.0, FEW / max(1, len(self._analysis.batches)))
            left -= few * self._measurement_s + self._biases_s
        if self._mixed_biases is None and self._fitted_ranges is not None:
            left -= self._measurement_s  # what is done once takes about as long
        return left / max(self._measurement_s, 1e-6)

    @property
    def _fitted_ranges(self) -> Ranges | None:
        """The ranges, where the calibration fitted layers: maps correct their biases; else None."""
        ranges = self._analysis.setting.ranges
        return ranges if ranges is not None and ranges.roundings else None

    @property
    def _has_integers(self) -> bool:
        """Whether a map with int8 layers can be chosen, so that none need be assumed."""
        return any(found.can_be_chosen and "int8" in found.dtypes for found in self.found)

    def allowed_loss(self, part: float = 1.0, *, careful: bool = False) -> float | None:
        """Return the predicted loss up to which a map is expected to meet the bar, with a margin.

        Args:
            part: Part of it.
            careful: As of :meth:`.ExtrapolatedLoss.allowed`.

        Returns:
            None where nothing that was measured misses the bar.
        """
        aimed = max(_AIMED_PART, _NEAREST_PART - (self._loss.least_excess - 1))
        if self._loss.is_bracketed:
            aimed = _NEAREST_PART
        return self._loss.allowed(part * (_AIMED_PART if careful else aimed), careful=careful)

    def expected_to_hold(self, candidates: Sequence[tuple[int, ...]], low: int, middle: int) -> int:
        """Return the first position after ``low`` that is expected to meet the bar.

        ``middle`` where nothing that was measured tells.
        """
        allowed = self.allowed_loss()
        if allowed is None:
            return middle
        within = (
            at
            for at in range(low + 1, len(candidates))
            if self.predicted_loss(candidates[at]) <= allowed
        )
        return next(within, len(candidates) - 1)

    def _excess(self, verdict: JointVerdict, dtype: str) -> float:
        bar = self._analysis.bar
        return measured_excess(verdict, bar, dtype, can_be_shown=self.can_be_shown)

    def _by_name(self, choice: Sequence[int]) -> dict[str, str]:
        return {c.name: c.dtypes[at] for c, at in zip(self._choices, choice, strict=True)}

    def _judged(
        self,
        by_name: Mapping[str, str],
        ranges: Ranges | None,
        deadline: float,
        most: int | None = None,
    ) -> JointVerdict:
        setting, quantizer = self._analysis.setting, self._quantizer
        if ranges is not None:
            quantizer = Quantizer(setting.model, ranges, setting.scheme)
        model = emulated(setting.model, quantizer, by_name)
        dtype = whole_model_dtype(by_name.values())
        judge = self._analysis.judge
        return judge(model, dtype, deadline, measurements=_MEASUREMENTS, most=most)

    def _keep(
        self,
        choice: Sequence[int],
        judged: JointVerdict,
        ranges: Ranges | None,
        *,
        holds: bool,
        is_assumed: bool = False,
    ) -> DtypeMap:
        found = dataclasses.replace(
            self._unmeasured(choice),
            cosine=judged.accuracy.cosine,
            agreement=judged.accuracy.agreement,
            drop=judged.drop,
            samples=judged.accuracy.samples,
            holds=holds,
            mean_loss=judged.mean_loss,
            loss_bound=loss_bound(judged.losses),
            biases={} if ranges is None else {**ranges.biases, **ranges.half_biases},
            is_assumed=is_assumed,
            is_undecided=self._is_undecided(judged) and not holds and not is_assumed,
            samples_to_decide=judged.samples_to_decide if not holds else 0,
        )
        self.found.append(found)
        self._tell(found)
        return found

    def _is_undecided(self, judged: JointVerdict) -> bool:
        """Return whether a map is likely to meet the bar, and no map can be shown to."""
        return judged.is_likely and not self.can_be_shown

    def seconds(self, choice: Sequence[int]) -> float:
        """Return the predicted seconds of the layers, with the changes of dtype between them."""
        return total_seconds(choice, self._choices, self._changes)

    def predicted_loss(self, choice: Sequence[int]) -> float:
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
        setting, fitted, self._setup_s = self._analysis.setting, self._fitted_ranges, 0.0
        dtypes = set(by_name.values())
        if fitted is None or "int8" not in dtypes:
            return None
        start = time.monotonic()
        if len(dtypes) < 2 or start + self._biases_s > deadline:
            return None
        if self._mixed_biases is None:
            inputs = [batch.inputs for batch in self._analysis.batches]
            self._mixed_biases = MixedBiases(setting.model, fitted, inputs, setting.scheme)
            self._setup_s = time.monotonic() - start
        found = self._mixed_biases(by_name)
        self._biases_s = time.monotonic() - start - self._setup_s
        return found

    def keep_known(self, deadline: float) -> None:
        """Keep the maps of one dtype whose verdicts are known: evaluation may refuse others."""
        kept = {(found.layers, found.dtypes) for found in self.found}
        for dtype in self._known:
            able = [c for c in self._choices if dtype in c.dtypes]
            if (tuple(c.index for c in able), (dtype,) * len(able)) not in kept:
                at = [c.dtypes.index(dtype) if dtype in c.dtypes else 0 for c in self._choices]
                self(at, deadline)

    def accept_halves(self, deadline: float) -> bool:
        """Measure all layers in 16-bit floats, which must not be shown to lose more than allowed.

        Few samples cannot show with 95% confidence that a drop is within the limit, even one of
        rounding to 16 bits. The drop itself then decides.

        Returns:
            Whether the map is taken to meet the bar.
        """
        found = self([c.half for c in self._choices], deadline)
        was_measured = found.samples == sum(b.valid for b in self._analysis.batches)
        if not found.holds and was_measured and found.drop <= self._analysis.bar.max_drop:
            found = self.found[-1] = dataclasses.replace(found, holds=True)
        return found.holds

    def offer(self, choice: Sequence[int], deadline: float) -> DtypeMap:
        """Measure a choice that evaluation is to judge where it refused a faster one.

        It can be chosen if its drop is within the limit, shown or not; also where time is too short
        to measure it.
        """
        if not self.is_known(choice) and self.times_left(deadline) < 1:
            self.found.append(dataclasses.replace(self._unmeasured(choice), is_undecided=True))
            return self.found[-1]
        found = self(choice, deadline)
        if not found.can_be_chosen and found.drop <= self._analysis.bar.max_drop:
            found = self.found[-1] = dataclasses.replace(found, is_undecided=True)
        return found

    def guess(self, choice: Sequence[int], deadline: float) -> None:
        """Keep a choice that was not measured, with its biases where there is time for them."""
        ranges = self._corrected(self._by_name(choice), deadline)
        biases = {} if ranges is None else {**ranges.biases, **ranges.half_biases}
        found = dataclasses.replace(self._unmeasured(choice), biases=biases, is_guess=True)
        self.found.append(found)

    def least_drop(self, found: DtypeMap) -> float:
        """Return the least drop that a map can have on all samples.

        Where time was too short for all of them, the worst ones were measured: the others lose
        nothing at best.
        """
        samples = sum(batch.valid for batch in self._analysis.batches)
        return found.drop * min(1.0, found.samples / samples)

    def has(self, choice: Sequence[int]) -> bool:
        """Return whether a map of this choice was kept, or needs no measurement."""
        unmeasured = self._unmeasured(choice)
        of = {(m.layers, m.dtypes) for m in self.found}
        return self.is_known(choice) or (unmeasured.layers, unmeasured.dtypes) in of

    def float_model(self) -> DtypeMap:
        """Return the map in which all layers stay float32."""
        return dataclasses.replace(self._unmeasured([0] * len(self._choices)), holds=True)

    def _unmeasured(self, choice: Sequence[int]) -> DtypeMap:
        """Return the map of a choice as it is predicted."""
        pairs = zip(self._choices, choice, strict=True)
        by_index = {c.index: c.dtypes[at] for c, at in pairs if at}
        loss = self.predicted_loss(choice)
        return DtypeMap(
            layers=tuple(by_index),
            dtypes=tuple(by_index.values()),
            predicted_s=self.seconds(choice),
            predicted_loss=loss,
            cosine=1 - loss,
            agreement=None,
            drop=0.0,
            samples=0,
            holds=False,
        )

    def _tell(self, found: DtypeMap) -> None:
        if self._analysis.progress is not None:
            count = len(self._analysis.layers)
            halves = len(half_layers(found.by_layer))
            text = (
                f"{len(found.layers) - halves} layers in int8, {halves} in 16 bits, cosine "
                f"{found.cosine:.4f}"
            )
            self._analysis.progress(count, count, text)
