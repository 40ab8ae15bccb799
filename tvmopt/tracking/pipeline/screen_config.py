"""Configuration of the screen stage, of a request."""

from __future__ import annotations

import dataclasses

from tvmopt.config import ScreenConfig
from tvmopt.tracking.pipeline.request import Request

#: Part of the time limit of the analysis, which the stage may take.
PART_OF_ANALYSIS = 0.5
_FASTEST = -99


def screen_config(request: Request) -> ScreenConfig:
    """Return the configuration of the screen stage, which begins with the request's map of dtypes.

    Where that is 0, the one that the analysis chose, faster ones may be taken, too.
    """
    convert, evaluate = request.convert, request.evaluate
    return ScreenConfig(
        convert=dataclasses.replace(convert, dtype_map=0).to_dict(),
        first=convert.dtype_map,
        least=convert.dtype_map or _FASTEST,
        metric_sha256=evaluate.metric_sha256,
        max_samples=evaluate.max_samples,
        time_limit_s=PART_OF_ANALYSIS * request.sensitivity.sensitivity_time,
        max_accuracy_drop=request.max_accuracy_drop,
        **request.asked.metric.values(),
    )
