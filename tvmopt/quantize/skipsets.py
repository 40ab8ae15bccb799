"""Skip sets of rising size, each measured with all other layers converted.

Errors of single layers do not add up in every model, so a set is proposed only when the model has
been run without it. First come beginnings of one ranking: 0, 1, 2, 4, ... layers until the bar
holds, then sizes between the last that failed and the first that held. A size that the errors of
single layers rule out by far is passed over. Then layers of the set that held are converted again,
in ever smaller groups, as long as it goes on holding with twice the margin: of many sets that are
tried, some hold by luck. All layers skipped is the float model.

Source of the last step: delta debugging, Zeller and Hildebrandt, IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from tvmopt.quantize.bar import Bar
from tvmopt.quantize.joint import Convert, Judge, Verdict
from tvmopt.quantize.report import LayerCost, SkipSet, ranked

_TOO_FAR = 3.0  # times the allowed loss: a rung that is predicted to lose more is left out
_MOST_REFINEMENTS = 8

Told = Callable[[SkipSet], None]


class Ladder:
    """Measures skip sets of one type.

    Args:
        costs: Costs of the layers in that type.
        convert: Makes the model with given layers (names) left float.
        judge: Measures it.
        bar: What must hold.
        told: Called with each set.
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
        self._order = ranked(costs)
        self._dtype = costs[0].dtype if costs else ""
        self._convert, self._judge, self._bar, self._told = convert, judge, bar, told
        self.sets: list[SkipSet] = []

    def climb(self, first: Verdict, deadline: float) -> list[SkipSet]:
        """Measure until a small set holds.

        Args:
            first: Verdict on the model with nothing skipped.
            deadline: Value of ``time.monotonic()`` after which nothing new is begun.

        Returns:
            The sets in the order they were measured; one of them holds.
        """
        order, count = self._order, len(self._order)
        if count == 0:
            self._add((), None)
            return self.sets
        self._add((), first)
        fails, size = 0, 0
        while not self.sets[-1].holds:
            fails, size = size, self._next_size(size)
            if size < count and time.monotonic() >= deadline:
                size = count
            self._measure(order[:size], deadline)
        while size - fails > 1 and time.monotonic() < deadline:
            middle = (size + fails) // 2
            if self._measure(order[:middle], deadline):
                size = middle
            else:
                fails = middle
        return self.sets

    def _next_size(self, size: int) -> int:
        count = len(self._order)
        size = max(1, 2 * size)
        while size < count and self._predicted_loss(size) > _TOO_FAR * self._allowed:
            size *= 2
        return min(size, count)

    @property
    def _allowed(self) -> float:
        return self._bar.cosine_loss(self._dtype)

    def _predicted_loss(self, size: int) -> float:
        # Errors of single layers are independent more often than not: their powers add up, and a
        # cosine loses half the error power.
        return sum(self._costs[index].error for index in self._order[size:]) / 2

    def convert_again(self, deadline: float) -> list[SkipSet]:
        """Try smaller sets than the smallest that holds, until ``deadline``; returns all sets."""
        strict = dataclasses.replace(self._bar, margin=self._bar.margin / 2)
        left = list(min((s for s in self.sets if s.holds), key=lambda s: len(s.layers)).layers)
        group = len(left) // 2
        measured = 0
        while group >= 1:
            # Those that gain most for their error are tried first.
            left.sort(key=lambda i: self._costs[i].gain / max(self._costs[i].error, 1e-12))
            start = len(left)
            while start > 0:
                if time.monotonic() >= deadline or measured >= _MOST_REFINEMENTS:
                    return self.sets
                start = max(0, start - group)
                rest = left[:start] + left[start + group :]
                if not self._known(rest):
                    measured += 1
                    if self._measure(rest, deadline, strict):
                        left = rest
            group //= 2
        return self.sets

    def _known(self, skipped: Sequence[int]) -> bool:
        return any(s.layers == tuple(sorted(skipped)) for s in self.sets)

    def _measure(
        self, skipped: Sequence[int], deadline: float, bar: Bar | None = None
    ) -> bool:
        layers = tuple(sorted(skipped))
        if len(layers) == len(self._order):
            return self._add(layers, None)
        model = self._convert([self._costs[index].name for index in layers])
        return self._add(layers, self._judge(model, self._dtype, deadline, bar=bar))

    def _add(self, layers: tuple[int, ...], verdict: Verdict | None) -> bool:
        """Record a set; no verdict is for the float model."""
        if verdict is None:
            found = SkipSet(self._dtype, layers, "exact", 1.0, None, 0.0, 0.0, 0, True)
        else:
            accuracy = verdict.accuracy
            gain = sum(self._costs[index].gain for index in self._order if index not in layers)
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
            )
        self.sets.append(found)
        if self._told is not None:
            self._told(found)
        return found.holds
