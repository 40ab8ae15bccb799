"""The next map of dtypes, where ``dtype=auto`` chose one that evaluation refuses.

The sensitivity stage judges a map on few samples, so evaluation may refuse what it took. The
analysis has measured slower and more accurate maps, too: conversion goes on with the fastest one
that loses at most half as much, instead of leaving the user without a model.
"""

from __future__ import annotations

from tvmopt.choices import AUTO
from tvmopt.quantize.dtype_map import number_after
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.tracking.pipeline.steps import StagePipeline

_KEPT = ("calibrate", "sensitivity")


def with_next_map(pipeline: StagePipeline) -> StagePipeline | None:
    """Return the pipeline with the next map; None where the request chooses none, or it was last.

    Args:
        pipeline: It has run the sensitivity stage, if the request needs it.
    """
    request = pipeline.request
    if request.asked.conversion.dtype != AUTO or not request.needs_sensitivity:
        return None
    found = read_sensitivity(pipeline.run("sensitivity").folder)
    number = number_after(found.dtype_maps, request.asked.conversion.dtype_map)
    if number is None:
        return None
    known = [output for output in pipeline.outputs if output.stage in _KEPT]
    return StagePipeline(pipeline.session, request.changed(dtype_map=number), known)
