"""The next map of dtypes, where ``dtype=auto`` chose one that evaluation refuses.

The sensitivity stage judges a map on few samples, so evaluation may refuse what it took. The
analysis has measured slower and more accurate maps, too: conversion goes on with one of them,
instead of leaving the user without a model. Where the time budget is enough for two more, that is
the fastest one whose predicted loss is as much smaller as the drop is to be; else one that was
measured to meet the bar, if the refused one was not, or one of a quarter of the loss.
"""

from __future__ import annotations

from tvmopt.choices import AUTO
from tvmopt.quantize.dtype_map import number_after
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.tracking.pipeline.steps import StagePipeline

_KEPT = ("calibrate", "sensitivity")
# Stages of another map that take as long again; tuning has what is left.
_AGAIN = ("convert", "build", "evaluate")
_ENOUGH = 2.0  # times the seconds of a map, that are to be left so that another one can follow


def with_next_map(pipeline: StagePipeline, drop: float, left_s: float) -> StagePipeline | None:
    """Return the pipeline with the next map; None where the request chooses none, or it was last.

    Args:
        pipeline: It has run the sensitivity stage, if the request needs it.
        drop: Accuracy drop of its model, which was refused, as of :func:`number_after`.
        left_s: Seconds that are left of the time budget; infinite without one.
    """
    request = pipeline.request
    if request.asked.conversion.dtype != AUTO or not request.needs_sensitivity:
        return None
    found = read_sensitivity(pipeline.run("sensitivity").folder)
    is_enough = left_s >= _ENOUGH * pipeline.busy_s(*_AGAIN)
    number = number_after(
        found.dtype_maps,
        request.asked.conversion.dtype_map,
        drop,
        request.max_accuracy_drop,
        is_last=not is_enough,
    )
    return None if number is None else pipeline.changed(_KEPT, dtype_map=number)
