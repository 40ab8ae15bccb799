"""Extrapolate from measured maps of dtypes to the predicted loss that the accuracy bar allows.

The measured excess of a map is its loss as a multiple of the allowed loss. It is taken to be a
power of the predicted loss, with an exponent between 1/2 and 1: the error power adds up over
layers, and a changed class or character takes an error amplitude, the root of the power. Between a
map within the bar and one that misses it, two measurements determine the exponent.
"""

from __future__ import annotations

import math

from tvmopt.evaluate.drop_interval import ERRORS_OF_INTERVAL
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.joint import JointVerdict

_LEAST_EXPONENT, _LARGEST_EXPONENT = 0.5, 1.0
# Between two measurements, whose noise alone can give any exponent.
_FLATTEST, _STEEPEST = 0.25, 4.0
_NEAR = 2.0  # ratio of excesses below which two measured maps are near each other


class ExtrapolatedLoss:
    """Predicted losses of maps, and measured excesses over the bar.

    Args:
        is_counted: Whether the accuracy is a count of rows, so that few samples give a noisy one.
    """

    def __init__(self, *, is_counted: bool = True) -> None:
        self._is_counted = is_counted
        self._missed: dict[float, float] = {}
        self._held: dict[float, float] = {}

    def add(self, predicted: float, excess: float) -> None:
        """Add a measured map; one without a predicted loss says nothing.

        Args:
            predicted: Its predicted loss.
            excess: Its measured loss over the allowed loss.
        """
        if predicted > 0 and excess > 0 and math.isfinite(predicted) and math.isfinite(excess):
            known = self._missed if excess > 1 else self._held
            known[predicted] = max(excess, known.get(predicted, 0.0))

    @property
    def is_bracketed(self) -> bool:
        """Whether the missed map with the least predicted loss has one within the bar near it."""
        loss, excess = min(self._missed.items(), default=(0.0, math.inf))
        held = max((pair for pair in self._held.items() if pair[0] < loss), default=(0.0, 0.0))
        return excess < _NEAR * held[1]

    @property
    def least_excess(self) -> float:
        """The excess of the missed map with the least predicted loss; infinite without one."""
        return min(self._missed.items(), default=(0.0, math.inf))[1]

    def allowed(self, part: float, *, careful: bool = False) -> float | None:
        """Return the largest predicted loss whose measured loss is expected to be allowed.

        The exponent follows from the missed map with the least predicted loss, and the map within
        the bar with the largest one below it; else from the two missed maps with the least
        predicted losses. It is the largest where a single map was measured.

        Args:
            part: Part of the allowed loss that is aimed at.
            careful: For a map that is not measured further: take the least exponent where the
                accuracy is a count, since two noisy measurements can give any.

        Returns:
            None where no map missed the bar.
        """
        if not self._missed:
            return None
        (loss, excess), *others = sorted(self._missed.items())
        if careful and self._is_counted:
            return float(loss * (part / excess) ** (1 / _LEAST_EXPONENT))
        exponent = _LEAST_EXPONENT if careful else _LARGEST_EXPONENT
        nearest = max((pair for pair in self._held.items() if pair[0] < loss), default=None)
        if nearest is not None:
            held_loss, held_excess = nearest
            slope = math.log(excess / held_excess) / math.log(loss / held_loss)
            if careful:
                exponent = min(_LARGEST_EXPONENT, max(_LEAST_EXPONENT, slope))
            else:
                exponent = min(_STEEPEST, max(_FLATTEST, slope))
            return float(max(held_loss, loss * (part / excess) ** (1 / exponent)))
        if others and not careful:
            other_loss, other_excess = others[0]
            slope = math.log(other_excess / excess) / math.log(other_loss / loss)
            exponent = min(_LARGEST_EXPONENT, max(_LEAST_EXPONENT, slope))
        return float(loss * (part / excess) ** (1 / exponent))


def measured_excess(
    verdict: JointVerdict, bar: Bar, dtype: str, *, can_be_shown: bool = True
) -> float:
    """Return the loss of a measured model over the loss that the bar allows.

    The drop counts with the upper end of its interval, which decides. The smaller multiple counts
    where both the drop and the closeness to the float model miss the bar; it is at most 1 where the
    model meets the bar. Where the samples can show that of no model, one standard error is added in
    place of the interval, and the multiple is at most 1 where the model is likely to meet the bar.

    Args:
        verdict: What was measured.
        bar: The accuracy bar.
        dtype: The dtype that decides the allowed loss.
        can_be_shown: Whether the samples show of a more accurate model that it meets the bar.
    """
    drop = verdict.drop
    if verdict.most_drop is not None:
        spread = max(0.0, verdict.most_drop - drop)
        drop += spread if can_be_shown else spread / ERRORS_OF_INTERVAL
    by_drop = drop / bar.max_drop if bar.max_drop > 0 else 0.0
    losses = by_drop, bar.distance(verdict.accuracy.cosine, verdict.losses, dtype)
    if verdict.holds or (verdict.is_likely and not can_be_shown):
        return by_drop if 0 < by_drop <= 1 else min(1.0, *losses)
    return min((loss for loss in losses if loss > 1), default=1.0)
