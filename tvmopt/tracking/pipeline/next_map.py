"""The map of dtypes to build, where ``dtype=auto`` has several.

The sensitivity stage judges maps on few samples, and chooses the fastest. The screen stage emulates
it on the evaluation samples, then slower or faster ones. The fastest that keeps the accuracy is
built. Evaluation may refuse its compiled form, and promotion may on held-out samples. Conversion
then goes on with another map, instead of leaving the user without a model. That one keeps the
accuracy in emulation, too; its predicted loss is as much smaller as the drop is to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvmopt.choices import AUTO
from tvmopt.errors import PromotionRefusedError
from tvmopt.quantize.dtype_map import number_after
from tvmopt.stages.screen import MAP_METRIC
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.screen_config import screen_config
from tvmopt.tracking.pipeline.steps import StagePipeline

#: The step that chooses the map.
SCREEN = "screen"
_KEPT = ("calibrate", "sensitivity")
# Of the limit, which emulation on the evaluation samples is to keep at least where held-out samples
# lost more: by R2 a detector loses 1.2 times as much on some samples as on others.
_LEAST_OF_LIMIT = 0.7
# Of conversion, compilation, evaluation and promotion, which follow: 28 to 58 s of 24 to 102 layers
# (two Xeon cores with AMX beside seven commands alike), and 23 to 53 s (two Zen 4 cores).
_TO_END_S, _TO_END_S_OF_LAYER = 15.0, 0.45
# Of what is left of the time budget then. Faster maps are worth 10 to 30 %, tuning 0 to 7 %.
_PART_OF_SPARE = 0.85
# Of the stage's share of the budget, which it has at least.
_LEAST_PART = 0.7


def has_maps(request: Request) -> bool:
    """Return whether the analysis chooses a dtype for each layer."""
    return request.asked.conversion.dtype == AUTO and request.needs_sensitivity


def with_first_map(pipeline: StagePipeline, left_s: Callable[[], float]) -> StagePipeline:
    """Return the pipeline with the fastest map that keeps the accuracy in emulation.

    The pipeline itself where the request has no maps.

    Args:
        pipeline: The pipeline.
        left_s: Returns the seconds that are left of the time budget; infinity without one.
    """
    return _screened(pipeline, left_s) if has_maps(pipeline.request) else pipeline


def with_next_map(
    pipeline: StagePipeline, refused: PromotionRefusedError, left_s: Callable[[], float]
) -> StagePipeline | None:
    """Return the pipeline with the next map; None where the request has no maps, or it was last.

    Args:
        pipeline: It has run the sensitivity stage, if the request needs it.
        refused: Why its model is not promoted.
        left_s: As of :func:`with_first_map`.
    """
    request = pipeline.request
    if not has_maps(request):
        return None
    found = read_sensitivity(pipeline.run("sensitivity").folder)
    number = number_after(
        found.dtype_maps,
        request.convert.dtype_map,
        _drop(pipeline, refused),
        request.max_accuracy_drop,
    )
    if number is None:
        return None
    following = pipeline.changed(_KEPT, dtype_map=number)
    following.takes_faster_maps = False
    following.screen_limit = _screen_limit(pipeline, refused)
    return _screened(following, left_s)


def _drop(pipeline: StagePipeline, refused: PromotionRefusedError) -> float:
    """Return the accuracy drop on all samples that the model ran on.

    Held-out samples are few, and refuse by chance, too.
    """
    if not refused.samples:
        return refused.drop
    evaluated = pipeline.run("evaluate").metrics
    samples = evaluated["accuracy_samples"]
    lost = evaluated["accuracy_drop"] * samples + refused.drop * refused.samples
    return lost / (samples + refused.samples)


def _screen_limit(pipeline: StagePipeline, refused: PromotionRefusedError) -> float:
    """Return the most drop in emulation: less than the limit where held-out samples lose more."""
    limit = pipeline.request.max_accuracy_drop
    if not refused.samples:
        return limit
    part = pipeline.run("evaluate").metrics["accuracy_drop"] / refused.drop
    return limit * min(1.0, max(_LEAST_OF_LIMIT, part))


def _screened(pipeline: StagePipeline, left_s: Callable[[], float]) -> StagePipeline:
    """Return the pipeline with the map that the screen stage takes."""
    if math.isfinite(left_s()):
        pipeline.limit_time(SCREEN, _screen_s(pipeline, left_s))
    number = int(pipeline.run(SCREEN).metrics[MAP_METRIC])
    if number == pipeline.request.convert.dtype_map:
        return pipeline
    return pipeline.changed((*_KEPT, SCREEN), dtype_map=number)


def _screen_s(pipeline: StagePipeline, left_s: Callable[[], float]) -> float:
    """Return the seconds that the screen stage may take, after the stages that it needs."""
    found = read_sensitivity(pipeline.run("sensitivity").folder)
    layers = len({cost.index for cost in found.costs})
    spare_s = left_s() - _TO_END_S - _TO_END_S_OF_LAYER * layers
    return max(_LEAST_PART * screen_config(pipeline.request).time_limit_s, _PART_OF_SPARE * spare_s)
