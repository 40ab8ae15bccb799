"""The space of a search: what is known at once, and what an analysis adds within bounds.

The analysis proposes skip sets for each dtype. Where a network may be int8 and a 16-bit float at
once, it chooses a dtype for each layer instead: ``auto`` becomes a dtype of the space.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from tvmopt.choices import AUTO, LOW_DTYPES
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.errors import LimitError
from tvmopt.quantize import Sensitivity
from tvmopt.quantize.analysis import is_convertible
from tvmopt.quantize.dtype_map import NUMBERED_MAPS
from tvmopt.quantize.roofline import mixed_dtypes, roofline_of
from tvmopt.search.budget import Budget
from tvmopt.search.choose import FLOAT, choose_dtypes, choose_skips
from tvmopt.search.declared import Declared
from tvmopt.search.dimensions import DTYPE_MAPS
from tvmopt.search.generate import generate_space
from tvmopt.search.shares import ANALYSIS, CALIBRATION, STOPPED_AT, Share
from tvmopt.search.space import Space
from tvmopt.stages.screen import MAP_METRIC
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.in_child import model_layers
from tvmopt.tracking.pipeline.next_map import SCREEN
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.screen_config import PART_OF_ANALYSIS
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.runs import log_tags
from tvmopt.tracking.store.stage_run import Session, StageOutput

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PART_OF_LEFT = 0.25  # of the seconds left that calibration, and the analysis, take at most
_LEAST_S = 1.0
_NEEDS_CALIBRATION = "int8"
_MAPS = 6  # of dtypes, that a search may try one after the other
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


def mixes_dtypes(
    request: Request, space: Space, dtypes: Collection[str], declared: Declared
) -> bool:
    """Return whether the analysis chooses a dtype for each layer, in place of int8's skip sets.

    It does where the space has int8 and a 16-bit float: layers that lose too much in the one, or in
    both, keep the other, or float32. Dtypes that the user declared are tried as they are.

    Args:
        request: Of the search.
        space: The space.
        dtypes: The dtypes to analyse.
        declared: The user's restrictions.
    """
    mixed = mixed_dtypes(request.target)
    return (
        not declared.dtypes
        and len(mixed) > 1
        and set(mixed) <= set(space.dtypes)
        and _NEEDS_CALIBRATION in dtypes
    )


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
    mixes: bool = False,
) -> Space:
    """Calibrate and analyse within the limits of ``request``; return the space with the result.

    A stage that exceeds its limit is stopped at one and a half times that: without calibration the
    space loses int8, without the analysis it keeps the skip sets that it has. A tag of the
    session's run and the terminal say so.

    Args:
        session: Of the search.
        request: As of :func:`analysis_request`.
        space: The space.
        dtypes: The dtypes to analyse.
        allowance: Most memory and seconds of a stage in any case.
        mixes: Whether to choose a dtype for each layer, as of :func:`mixes_dtypes`.

    Raises:
        LimitError: When int8 is the only dtype and calibration exceeds its limits.
    """
    left = [dtype for dtype in dtypes if dtype in space.dtypes]
    calibrated: list[StageOutput] = []
    if _NEEDS_CALIBRATION in left:
        limited = _limited(session, allowance, request.asked.calibration.calibration_time)
        try:
            calibrated.append(StagePipeline(limited, request).run("calibrate"))
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
    mixes = mixes and _NEEDS_CALIBRATION in left
    asked = {"dtype": AUTO, "dtypes": ""} if mixes else {"dtypes": ",".join(left)}
    try:
        pipeline = StagePipeline(limited, request.changed(**asked), calibrated)
        found = read_sensitivity(pipeline.run("sensitivity").folder)
    except LimitError as error:
        _note(session, f"no layers are skipped: {error}")
        return space
    if mixes:
        return with_mix(space, found, _first_map(session, allowance, pipeline))
    skips = {dtype: choose_skips(found, dtype) for dtype in left}
    return dataclasses.replace(space, skip_layers={**space.skip_layers, **skips})


def _first_map(session: Session, allowance: Allowance, pipeline: StagePipeline) -> int:
    """Return the number of the fastest map that keeps the accuracy in emulation; 0 if unknown."""
    seconds = PART_OF_ANALYSIS * pipeline.request.asked.sensitivity_limit.sensitivity_time
    limited = _limited(session, allowance, seconds)
    try:
        emulating = StagePipeline(limited, pipeline.request, pipeline.outputs)
        return int(emulating.run(SCREEN).metrics[MAP_METRIC])
    except LimitError as error:
        _note(session, f"no map of dtypes is left out: {error}")
        return 0


def with_mix(space: Space, found: Sensitivity, first_map: int = 0) -> Space:
    """Return the space with ``auto``, where the layers have several dtypes together.

    ``auto`` comes behind a 16-bit float that is the first dtype, before all other dtypes. Its maps
    are the first one and some slower ones: evaluation may refuse the first. A map of one dtype for
    all layers, which the space has already, is left out; so is ``auto`` where no other is left.

    Args:
        space: The space.
        found: The analysis.
        first_map: Number of the fastest map to try.
    """
    convertible = {cost.index for cost in found.costs if is_convertible(cost)}
    chosen: list[dict[int, str]] = []
    maps: list[str] = []
    for number in range(first_map, min(first_map + _MAPS, NUMBERED_MAPS)):
        by_layer = found.map(number).by_layer
        is_mixed = len({by_layer.get(index, FLOAT) for index in convertible}) > 1
        if is_mixed and by_layer not in chosen:
            maps.append(str(number))
        chosen.append(by_layer)
    if not maps:
        return space
    first = int(space.dtypes[0] in HALF_FLOATS)
    dtypes = (*space.dtypes[:first], AUTO, *space.dtypes[first:])
    further = {**space.further, DTYPE_MAPS: tuple(maps)}
    return dataclasses.replace(space, dtypes=dtypes, further=further)


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
