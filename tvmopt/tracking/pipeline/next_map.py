"""The map of dtypes to build, where ``dtype=auto`` has several.

The sensitivity stage judges maps on few samples, and chooses the fastest. The screen stage emulates
it on the evaluation samples, then slower or faster ones. The fastest that keeps the accuracy is
built. Evaluation may refuse its compiled form, and promotion may on held-out samples. Conversion
then goes on with another map, instead of leaving the user without a model. That one keeps the
accuracy in emulation, too; its predicted loss is as much smaller as the drop is to be.
"""

from __future__ import annotations

from tvmopt.choices import AUTO
from tvmopt.errors import PromotionRefusedError
from tvmopt.quantize.dtype_map import number_after
from tvmopt.stages.screen import MAP_METRIC
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import StagePipeline

#: The step that chooses the map.
SCREEN = "screen"
_KEPT = ("calibrate", "sensitivity")


def has_maps(request: Request) -> bool:
    """Return whether the analysis chooses a dtype for each layer."""
    return request.asked.conversion.dtype == AUTO and request.needs_sensitivity


def with_first_map(pipeline: StagePipeline) -> StagePipeline:
    """Return the pipeline with the fastest map that keeps the accuracy in emulation.

    The pipeline itself where the request has no maps.
    """
    return _screened(pipeline) if has_maps(pipeline.request) else pipeline


def with_next_map(pipeline: StagePipeline, refused: PromotionRefusedError) -> StagePipeline | None:
    """Return the pipeline with the next map; None where the request has no maps, or it was last.

    Args:
        pipeline: It has run the sensitivity stage, if the request needs it.
        refused: Why its model is not promoted.
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
    return _screened(following)


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


def _screened(pipeline: StagePipeline) -> StagePipeline:
    """Return the pipeline with the map that the screen stage takes."""
    number = int(pipeline.run(SCREEN).metrics[MAP_METRIC])
    if number == pipeline.request.convert.dtype_map:
        return pipeline
    return pipeline.changed((*_KEPT, SCREEN), dtype_map=number)
