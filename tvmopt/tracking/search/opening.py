"""Opening of a search: the fastest 16-bit float is tried before int8 is calibrated and analysed.

Calibration and the sensitivity analysis may take a fifth of the time budget, and all that they tell
of a 16-bit float is, nearly always, that no layer need be skipped. So the first trial converts all
layers to the first dtype of the space, where that is such a float. When that trial is feasible,
16-bit floats are not analysed at all, and the analysis of int8 chooses a dtype for each layer.
Without a time budget the analysis is bounded by the parameter ``sensitivity_time``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.errors import ConfigError
from tvmopt.search.declared import Declared
from tvmopt.search.space import Choice, Space
from tvmopt.search.study import SearchStudy
from tvmopt.search.tried import FINISHED, Tried
from tvmopt.tracking.report.sentences import EXHAUSTED
from tvmopt.tracking.search.analysis import (
    analysis_request,
    mixes_dtypes,
    to_analyse,
    with_analysis,
)
from tvmopt.tracking.search.facts import (
    calibrated_as,
    portable,
    with_limits_of,
)
from tvmopt.tracking.search.loop import SearchWork, heartbeat, work
from tvmopt.tracking.store.allowance import Stopwatch, stage_allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.exclusive import alone

_POLL_S, _LONELY_S = 1.0, 10.0


def begins_with_trial(space: Space, dtypes: Sequence[str]) -> bool:
    """Return whether a trial comes before the analysis.

    Args:
        space: The space without an analysis.
        dtypes: The dtypes that are to be analysed.
    """
    first = space.dtypes[0]
    return first in HALF_FLOATS and first in dtypes


def first_choice(space: Space) -> Choice:
    """Return the choice of the first trial: all layers in the first dtype, at the least effort."""
    return Choice(next(space.variants()), space.efforts[0])


def work_from_opening(job: SearchWork, declared: Declared) -> str:
    """Run the first trial and the analysis where these are to come, and then the other trials.

    Returns:
        Why no more trials are made, as of :func:`~tvmopt.tracking.search.loop.work`.
    """
    study = job.study
    if study.is_opening:
        first = first_choice(study.space)

        def choose(tried: Sequence[Tried]) -> Choice | None:
            return None if any(t.choice == first for t in tried) else first

        stopped = work(dataclasses.replace(job, choose=choose))
        if stopped != EXHAUSTED:  # the budget is spent
            return stopped
        # Of searches that open a study at once, one analyses.
        with heartbeat(study), alone(f"the analysis of {study.name}", say):
            if study.is_opening:
                _settle(job, declared, first)
        study.reload()
        job = dataclasses.replace(job, request=calibrated_as(job.request, study.declaration))
        say(f"space      {study.space.describe()}")
    return work(job)


def _settle(job: SearchWork, declared: Declared, first: Choice) -> None:
    """Analyse the dtypes that need it, and store the space."""
    study = job.study
    dtypes = to_analyse(study.space.dtypes, declared)
    holds = [t for t in study.tried() if t.choice == first and t.state == FINISHED]
    if any(not t.violation for t in holds):
        dtypes = [dtype for dtype in dtypes if dtype not in HALF_FLOATS]
    left_s = Stopwatch(job.trials_s, study.worked_s()).left()
    analysed = analysis_request(job.request, dtypes, job.budget, left_s)
    space = study.space
    if dtypes:
        allowance = stage_allowance(job.memory_limit_mb, job.trial_timeout_s)
        mixes = mixes_dtypes(job.request, space, dtypes, declared)
        space = with_analysis(job.session, analysed, space, dtypes, allowance, mixes)
    study.settle(space, portable(with_limits_of(job.request, analysed)))


def wait_for_space(study: SearchStudy) -> None:
    """Wait until the search that began a study has found its space.

    Raises:
        ConfigError: When no process works on the study.
    """
    lonely_s = 0.0
    while study.is_opening:
        lonely_s = 0.0 if study.is_worked_on() else lonely_s + _POLL_S
        if lonely_s > _LONELY_S:
            raise ConfigError(
                f"study {study.name!r} must have its space, but the search that began it ended "
                "before; start that search again"
            )
        time.sleep(_POLL_S)
    study.reload()
