"""Search skip sets: measure each one with all other layers converted.

Errors of single layers are not additive in every model, so a set is proposed only after the model
ran with it.

1. Prefixes of a ranking: 0, 1, 2, 4, ... layers until the bar holds, then bisection between the
   last failure and the first success. Sizes that the single-layer errors clearly rule out are
   omitted.
2. When that loses much of the gain, a second ranking that skips many small layers instead of a
   large one.
3. Layers of the best set are converted again, in ever smaller groups, while a stricter bar holds.
   The bar is stricter because some of many sets meet a bar by chance.
4. Layers with the largest error for a few hundredths of the gain are added to the best set.

Skipping all layers gives the float model.

Source of step 3: delta debugging, Zeller and Hildebrandt, IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tvmopt.quantize.bar import Bar
from tvmopt.quantize.joint import Convert, JointVerdict, Judge
from tvmopt.quantize.loss_bound import loss_bound
from tvmopt.quantize.report import BALANCED, NEARLY, LayerCost, SkipSet, best, ranked

_TOO_FAR = 3.0  # multiple of the allowed loss; larger predicted losses are not measured
_MOST_REFINEMENTS = 8
_THRIFTY = 1.0  # see ranked()
_MUCH = 0.1  # fraction of the gain of all layers

Told = Callable[[SkipSet], None]


class Ladder:
    """Measure skip sets of one dtype.

    Args:
        costs: Costs of the layers in that dtype.
        convert: Returns the model with the given layers (names) left in float.
        judge: Measures a model.
        bar: Accuracy bar.
        told: Called with each set.

    Attributes:
        sets: Measured sets, in order.
    """

    def __init__(
        self,
        costs: Sequence[LayerCost],
        convert: Convert,
        judge: Judge,
        bar: Bar,
        told: Told | None = None,
    ) -> None:
        self._costs = {cost.index: cost for cost in costs}
        self._orders = [ranked(costs, thrift) for thrift in (BALANCED, _THRIFTY)]
        self._dtype = costs[0].dtype if costs else ""
        self._convert, self._judge, self._bar, self._told = convert, judge, bar, told
        self.sets: list[SkipSet] = []

    def climb(self, first: JointVerdict, deadline: float) -> None:
        """Measure until a small set holds; afterwards one of :attr:`sets` holds.

        Args:
            first: Verdict on the model with nothing skipped.
            deadline: Value of ``time.monotonic()`` after which no new measurement starts.
        """
        if not self._orders[0]:
            self._add((), None)
            return
        self._add((), first)
        self._climb(self._orders[0], deadline)
        possible = sum(self._costs[index].gain for index in self._orders[0])
        if self._fastest().gain < (1 - _MUCH) * possible and time.monotonic() < deadline:
            self._climb(self._orders[1], deadline)

    def _climb(self, order: list[int], deadline: float) -> None:
        fails, size = 0, 0
        holds = self._known(())
        while not holds:
            fails, size = size, self._next_size(order, size)
            if size < len(order) and time.monotonic() >= deadline:
                size = len(order)
            holds = self._measure(order[:size], deadline)
        while size - fails > 1 and time.monotonic() < deadline:
            middle = (size + fails) // 2
            if self._measure(order[:middle], deadline):
                size = middle
            else:
                fails = middle

    def _next_size(self, order: list[int], size: int) -> int:
        size = max(1, 2 * size)
        while size < len(order) and self._predicted_loss(order[size:]) > _TOO_FAR * self._allowed:
            size *= 2
        return min(size, len(order))

    @property
    def _allowed(self) -> float:
        return self._bar.cosine_loss(self._dtype)

    def _predicted_loss(self, converted: Sequence[int]) -> float:
        # Errors of single layers are mostly independent: their powers add up, and the cosine loss
        # is half the error power.
        return sum(self._costs[index].error for index in converted) / 2

    def convert_again(self, deadline: float) -> None:
        """Try subsets of the holding set with the largest gain, until ``deadline``."""
        strict = self._bar.stricter()
        left = list(self._fastest().layers)
        group = len(left) // 2
        measured = 0
        while group >= 1:
            # Layers with the largest gain for their error are tried first.
            left.sort(key=lambda i: self._costs[i].gain / max(self._costs[i].error, 1e-12))
            start = len(left)
            while start > 0:
                if time.monotonic() >= deadline or measured >= _MOST_REFINEMENTS:
                    return
                start = max(0, start - group)
                rest = left[:start] + left[start + group :]
                if self._known(rest) is None:
                    measured += 1
                    if self._measure(rest, deadline, strict):
                        left = rest
            group //= 2

    def insure(self, deadline: float) -> None:
        """Measure the best set plus the layers with little gain for their error."""
        fastest = self._fastest()
        if fastest.layers and time.monotonic() < deadline:
            skipped, budget = list(fastest.layers), NEARLY * fastest.gain
            for index in self._orders[1]:
                if index not in skipped and self._costs[index].gain <= budget:
                    skipped.append(index)
                    budget -= self._costs[index].gain
            self._measure(skipped, deadline)

    def confirm(self, deadline: float) -> None:
        """Measure the proposed set on all samples, where only the worst ones were measured.

        If it fails there and no other set holds, smaller ones are searched again.
        """
        while time.monotonic() < deadline:
            found = best(self.sets)
            if found.source == "exact" or found.mean_loss is not None:
                return
            self.sets.remove(found)
            model = self._convert([self._costs[index].name for index in found.layers])
            self._add(found.layers, self._judge(model, self._dtype, deadline, patient=True))
            if not any(s.holds for s in self.sets):
                self._climb(self._orders[0], deadline)

    def _fastest(self) -> SkipSet:
        return max((s for s in self.sets if s.holds), key=lambda s: (s.gain, -len(s.layers)))

    def _known(self, skipped: Sequence[int]) -> bool | None:
        """Return whether a set holds; None when it was not measured."""
        layers = tuple(sorted(skipped))
        return next((s.holds for s in self.sets if s.layers == layers), None)

    def _measure(self, skipped: Sequence[int], deadline: float, bar: Bar | None = None) -> bool:
        known = self._known(skipped)
        if known is not None:
            return known
        layers = tuple(sorted(skipped))
        if len(layers) == len(self._orders[0]):
            return self._add(layers, None)
        model = self._convert([self._costs[index].name for index in layers])
        return self._add(layers, self._judge(model, self._dtype, deadline, bar=bar))

    def _add(self, layers: tuple[int, ...], verdict: JointVerdict | None) -> bool:
        """Record a set; a verdict of None means the float model."""
        if verdict is None:
            found = SkipSet(self._dtype, layers, "exact", 1.0, None, 0.0, 0.0, 0, True)
        else:
            accuracy = verdict.accuracy
            gain = sum(self._costs[index].gain for index in self._orders[0] if index not in layers)
            found = SkipSet(
                self._dtype,
                layers,
                "measured",
                accuracy.cosine,
                accuracy.agreement,
                accuracy.drop,
                gain,
                accuracy.samples,
                verdict.holds,
                self._predicted_loss([i for i in self._orders[0] if i not in layers]),
                verdict.mean_loss,
                loss_bound(verdict.losses),
            )
        self.sets.append(found)
        if self._told is not None:
            self._told(found)
        return found.holds
