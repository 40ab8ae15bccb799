"""Choose a dtype for each layer: the least predicted time that meets the accuracy bar.

Choices from the fastest one to float32 come from :mod:`.layer_choices`. Errors of single layers do
not add up exactly, so a search over these choices, and then between two of them, measures the model
with all layers converted together, after a correction of its biases for these dtypes
(:mod:`.mixed_biases`). The fastest choice that meets the bar wins. Where time is short, few choices
are measured: each where the loss that was measured before lets it be expected within the bar. Where
no choice with int8 met the bar when time ends, the fastest one whose extrapolated loss is within
the bar (:mod:`.extrapolated_loss`) is measured on a few samples and assumed.

Samples can be too few to show that a map meets the bar, also the one with all layers in a 16-bit
float. One that is likely to is then undecided: it is chosen where it is clearly faster than what
was shown. In the end the maps are measured that follow the chosen one, should evaluation refuse it,
and faster ones are kept that may meet the bar: the screen stage measures them on other samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.quantize.analysis import Analysis, Costs, is_convertible
from tvmopt.quantize.dtype_map import LOSS_OF_NEXT, NUMBERED_MAPS, DtypeMap, fastest
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_choices import (
    LayerChoice,
    dtype_changes,
    layer_choices,
    pareto_choices,
    with_choices_between,
)
from tvmopt.quantize.layer_times import LayerTimes
from tvmopt.quantize.map_measurement import FEW, MapMeasurement

# Choices that are tried in turn on a few samples, each with half of the loss allowed before.
_ASSUMED = 3
# Predicted time of a map over that of a faster one, from which on the latter is not worth a
# measurement.
_NOT_WORTH = 1.02
# Multiple of the allowed drop that a map may lose here and yet keep to it on other samples.
_MAY_KEEP = 1.5


def choose_layer_dtypes(
    analysis: Analysis,
    costs: Costs,
    times: LayerTimes,
    deadline: float,
    known: Mapping[str, JointVerdict] | None = None,
    measurement_s: float = 0.0,
) -> list[DtypeMap]:
    """Return the maps that were measured; one of them meets the bar, float32 if no other does.

    Those that can be chosen, see :func:`.dtype_map.fastest`, have their biases.

    Args:
        analysis: The analysis.
        costs: Error of each layer and dtype, and seconds where they were measured.
        times: Predicted times, for layers that were not timed.
        deadline: Value of ``time.monotonic()``: no measurement starts that would end after it.
            One on a few samples may.
        known: Verdicts on all samples for the model with every layer in one dtype that can have it.
        measurement_s: Seconds that a measurement is expected to take.
    """
    choices = layer_choices(_as_measured(costs, known or {}), times)
    changes = dtype_changes(analysis.setting.graph, choices, times.bandwidth)
    measure = MapMeasurement(analysis, choices, changes, known or {}, measurement_s)
    candidates = with_choices_between(pareto_choices(choices, changes), choices, changes)
    _search(candidates, choices, measure, deadline)
    _measure_further(candidates, measure, deadline)
    measure.keep_known(deadline)
    chosen, max_drop = fastest(measure.found), _MAY_KEEP * analysis.bar.max_drop
    _guess_faster(candidates, measure, chosen, max_drop, deadline)
    return [_kept(found, measure.least_drop(found), chosen, max_drop) for found in measure.found]


def _as_measured(costs: Costs, known: Mapping[str, JointVerdict]) -> Costs:
    """Return costs whose errors add up to the loss of the model with all layers in their dtype.

    Errors of single layers do not add up: large ones saturate, and small ones lack what is lost
    between layers. A dtype in which the model was not measured keeps its errors.
    """
    scales = {}
    for dtype, verdict in known.items():
        errors = [c.error for c in costs.values() if c.dtype == dtype and is_convertible(c)]
        predicted = sum(errors) / 2  # of the cosine loss, half the error power
        if verdict.mean_loss and 0 < predicted < math.inf:
            scales[dtype] = verdict.mean_loss / predicted
    return {
        key: dataclasses.replace(cost, error=cost.error * scales.get(cost.dtype, 1.0))
        for key, cost in costs.items()
    }


def _measure_further(
    candidates: Sequence[tuple[int, ...]], measure: MapMeasurement, deadline: float
) -> None:
    """Measure the maps that follow the chosen one, one after the other, if evaluation refuses it.

    Evaluation judges them on other samples, so they need not be shown to meet the bar here. They
    are not faster than the chosen one, which would otherwise be another one.
    """
    chosen = fastest(measure.found)
    slower = [c for c in candidates if measure.seconds(c) >= chosen.predicted_s]
    loss = chosen.predicted_loss
    for _ in range(NUMBERED_MAPS - 1):
        most = LOSS_OF_NEXT * loss
        following = next((c for c in slower if measure.predicted_loss(c) <= most), ())
        if not any(following):
            return
        loss = measure.offer(following, deadline).predicted_loss


def _guess_faster(
    candidates: Sequence[tuple[int, ...]],
    measure: MapMeasurement,
    chosen: DtypeMap,
    max_drop: float,
    deadline: float,
) -> None:
    """Keep maps that are faster than the chosen one, and not known to lose more than ``max_drop``.

    Few samples show of few maps that these meet the bar, and time may end before they are measured.
    Each has a part of the predicted loss of a faster one: from that which is known to lose more, or
    the fastest, to the chosen one.
    """
    measured = (m for m in measure.found if m.samples > FEW)
    broken = [m.predicted_loss for m in measured if measure.least_drop(m) > max_drop]
    loss = min(broken, default=measure.predicted_loss(candidates[0]) / LOSS_OF_NEXT)
    for _ in range(NUMBERED_MAPS):
        loss *= LOSS_OF_NEXT
        faster = next((c for c in candidates if measure.predicted_loss(c) <= loss), ())
        if not any(faster) or measure.seconds(faster) >= chosen.predicted_s:
            return
        if not measure.has(faster):
            measure.guess(faster, deadline)


def _kept(found: DtypeMap, least_drop: float, chosen: DtypeMap, max_drop: float) -> DtypeMap:
    """Return a map without biases, unless it can be chosen or is a guess.

    A measured one is a guess if it is faster than the chosen one and is not known to lose more than
    ``max_drop``, though samples do not show that it meets the bar.
    """
    if found.can_be_chosen or found.is_guess:
        return found
    is_near = found.samples > 0 and least_drop <= max_drop
    if is_near and found.predicted_s < chosen.predicted_s:
        return dataclasses.replace(found, is_guess=True)
    return dataclasses.replace(found, biases={})


def _search(
    candidates: Sequence[tuple[int, ...]],
    choices: Sequence[LayerChoice],
    measure: MapMeasurement,
    deadline: float,
) -> None:
    """Measure choices until the fastest one that meets the bar is known, or time runs out."""
    if len(candidates) == 1:
        return
    # Where the fastest choice meets the bar, nothing else needs to be measured.
    can_measure = measure.is_known(candidates[0]) or (
        measure.may_hold(candidates[0]) and measure.times_left(deadline) >= 1
    )
    if can_measure and _is_enough(measure(candidates[0], deadline)):
        return
    candidates = _before_halves(candidates, choices, measure, deadline)
    low, high = _bisected(candidates, measure, deadline)
    halves = any(choice.never for choice in choices)
    if not set(fastest(measure.found).dtypes) <= set(HALF_FLOATS):
        return
    if high - low > 1 and _assumed(candidates[low : high + 1], measure, deadline):
        return
    if halves and not fastest(measure.found).layers:
        measure.accept_halves(deadline)


def _before_halves(
    candidates: Sequence[tuple[int, ...]],
    choices: Sequence[LayerChoice],
    measure: MapMeasurement,
    deadline: float,
) -> list[tuple[int, ...]]:
    """Return the candidates that are faster than all layers in a 16-bit float, and these, last.

    All candidates are returned if the model in that dtype is not known to meet the bar. Predicted
    losses of int8 and 16-bit floats do not compare well: a map with int8 layers needs a measurement
    although it is predicted to lose less.
    """
    halves = tuple(choice.half for choice in choices)
    is_known = all(halves) and measure.is_known(halves)
    if not is_known or not measure.accept_halves(deadline):
        return list(candidates)
    most_s = measure.seconds(halves)
    return [*(c for c in candidates if measure.seconds(c) < most_s and c != halves), halves]


def _bisected(
    candidates: Sequence[tuple[int, ...]], measure: MapMeasurement, deadline: float
) -> tuple[int, int]:
    """Measure choices between the first, which misses the bar, and the last, which meets it.

    Returns:
        Positions of the last choice that is known to miss the bar, and of the first one that is
        known to meet it; they follow each other unless time ran out.
    """
    low, high, aims = 0, len(candidates) - 1, True
    while high - low > 1 and (left := measure.times_left(deadline)) >= 1:
        if measure.seconds(candidates[high]) <= _NOT_WORTH * measure.seconds(candidates[low]):
            break
        middle = (low + high) // 2
        if aims or left < math.log2(high - low) + 1:  # too few for a bisection
            aimed = measure.expected_to_hold(candidates, low, middle)
            # A map that was measured and holds at the aim leaves the faster ones to bisect.
            if aimed < high or high == len(candidates) - 1:
                middle = min(aimed, high - 1)
        found = measure(candidates[middle], deadline)
        if _is_enough(found):
            high = middle
        else:
            low = middle
        aims = not aims
    return low, high


def _is_enough(found: DtypeMap) -> bool:
    """Return whether a faster map is sought next: this one meets the bar, as far as samples tell.

    Where they can show it of no map, a map that is likely to meet the bar is enough.
    """
    return found.holds or found.is_undecided


def _assumed(
    candidates: Sequence[tuple[int, ...]], measure: MapMeasurement, deadline: float
) -> bool:
    """Assume a choice after the first, which missed the bar; return whether one is not broken."""
    most = math.inf  # half of what is predicted of the last one that was broken
    for trial in range(_ASSUMED):
        allowed = measure.allowed_loss(0.5**trial, careful=True)
        if allowed is None:
            return False
        choice = _first_within(candidates, min(allowed, most), measure)
        if choice is None:
            return False
        if measure.assume(choice, deadline):
            return True
        most = 0.5 * measure.predicted_loss(choice)
    return False


def _first_within(
    candidates: Sequence[tuple[int, ...]], allowed: float, measure: MapMeasurement
) -> tuple[int, ...] | None:
    """Return the fastest choice after the first with at most the predicted loss ``allowed``.

    None stands for float32, and for a choice whose verdict is known, as that of all layers in
    16-bit floats.
    """
    within = (choice for choice in candidates[1:] if measure.predicted_loss(choice) <= allowed)
    found = next(within, None)
    return found if found is not None and any(found) and not measure.is_known(found) else None
