"""The space of a search: what is known at once, and skip sets by an analysis within bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from tvmopt.choices import LOW_DTYPES
from tvmopt.errors import LimitError
from tvmopt.quantize.roofline import roofline_of
from tvmopt.search.budget import Budget
from tvmopt.search.choose import FLOAT, choose_dtypes, choose_skips
from tvmopt.search.declared import Declared
from tvmopt.search.generate import generate_space
from tvmopt.search.shares import ANALYSIS, CALIBRATION, STOPPED_AT, Share
from tvmopt.search.space import Space
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.in_child import model_layers
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.runs import log_tags
from tvmopt.tracking.store.stage_run import Session

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PART_OF_LEFT = 0.25  # of the seconds left that calibration, and the analysis, take at most
_LEAST_S = 1.0
_NEEDS_CALIBRATION = "int8"
#: Tag of a search's run: what calibration or analysis could not do in its share of the budget.
ANALYSIS_TAG = "tvmopt.analysis"


def dtypes_of(request: Request, declared: Declared) -> tuple[str, ...]:
    """Return the dtypes of the space; float32 alone for a model of a table, unless declared."""
    source = request.interface
    if source is not None and source.flavor != "pytorch" and not declared.dtypes:
        return (FLOAT,)
    return choose_dtypes(
        declared, roofline_of(request.target), request.quantised, request.convert.allow_tf32
    )


def unanalysed_space(session: Session, request: Request, declared: Declared) -> Space:
    """Return the space with declared skip sets; of other dtypes all layers are converted."""
    layers = model_layers(request.model, request.convert.input_shapes, session.allow())
    convolutions = sum(layer.op in _CONVOLUTIONS for layer in layers)
    return generate_space(
        declared, dtypes_of(request, declared), convolutions, None,
        has_large_trees=request.has_large_trees, on_gpu=request.target.gpu is not None,
    )  # fmt: skip


def to_analyse(dtypes: Collection[str], declared: Declared) -> list[str]:
    """Return the dtypes whose skip sets the sensitivity analysis proposes."""
    return [d for d in dtypes if d in LOW_DTYPES and d not in declared.skip_layers]


def analysis_request(
    request: Request, dtypes: Collection[str], budget: Budget, left_s: float = math.inf
) -> Request:
    """Return the request of calibration and analysis, each within its share of the time budget.

    Args:
        request: Of the search.
        dtypes: The dtypes to analyse.
        budget: Of the study.
        left_s: Seconds that are left of it, of which each takes a quarter at most.
    """
    sensitivity_s = request.asked.sensitivity_limit.sensitivity_time
    calibration_s = request.asked.calibration.calibration_time
    if budget.time_s:
        sensitivity_s = min(sensitivity_s, _seconds(ANALYSIS, budget, left_s))
        within = _seconds(CALIBRATION, budget, left_s)
        calibration_s = min(calibration_s or within, within)
    return request.changed(
        dtypes=",".join(dtypes), sensitivity_time=sensitivity_s, calibration_time=calibration_s
    )


def with_analysis(
    session: Session,
    request: Request,
    space: Space,
    dtypes: Collection[str],
    allowance: Allowance,
) -> Space:
    """Calibrate and analyse within the limits of ``request``; return the space with skip sets.

    A stage that exceeds its limit is stopped at one and a half times that: without calibration the
    space loses int8, without the analysis it keeps the skip sets that it has. A tag of the
    session's run and the terminal say so.

    Args:
        session: Of the search.
        request: As of :func:`analysis_request`.
        space: The space.
        dtypes: The dtypes to analyse.
        allowance: Most memory and seconds of a stage in any case.

    Raises:
        LimitError: When int8 is the only dtype and calibration exceeds its limits.
    """
    left = [dtype for dtype in dtypes if dtype in space.dtypes]
    if _NEEDS_CALIBRATION in left:
        limited = _limited(session, allowance, request.asked.calibration.calibration_time)
        try:
            StagePipeline(limited, request).run("calibrate")
        except LimitError as error:
            left.remove(_NEEDS_CALIBRATION)
            kept = tuple(d for d in space.dtypes if d != _NEEDS_CALIBRATION)
            if not kept:
                raise
            space = dataclasses.replace(space, dtypes=kept)
            _note(session, f"int8 is left out: {error}")
    if not left:
        return space
    limited = _limited(session, allowance, request.asked.sensitivity_limit.sensitivity_time)
    try:
        analysed = request.changed(dtypes=",".join(left))
        found = read_sensitivity(StagePipeline(limited, analysed).run("sensitivity").folder)
    except LimitError as error:
        _note(session, f"no layers are skipped: {error}")
        return space
    skips = {dtype: choose_skips(found, dtype) for dtype in left}
    return dataclasses.replace(space, skip_layers={**space.skip_layers, **skips})


def _seconds(share: Share, budget: Budget, left_s: float) -> float:
    return max(_LEAST_S, min(share.seconds(budget.time_s), _PART_OF_LEFT * left_s))


def _limited(session: Session, allowance: Allowance, seconds: float) -> Session:
    """Return the session with a time limit on its stages, where ``seconds`` is not 0."""
    if seconds:
        known = allowance.seconds or math.inf
        allowance = dataclasses.replace(allowance, seconds=min(known, STOPPED_AT * seconds))
    return dataclasses.replace(session, takes_turns=True, allow=lambda: allowance)


def _note(session: Session, text: str) -> None:
    say(f"analysis   {text}")
    log_tags(session.client, session.run_id, {ANALYSIS_TAG: text})
