"""How schedules are found."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import GRANULARITIES, MEASURING, STRATEGIES
from tvmopt.parameters.declare import Group, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningParameters(Group):
    """How schedules are found."""

    strategy: str = parameter(
        "fast", f"tuning strategy: {', '.join(STRATEGIES)}", choices=STRATEGIES
    )
    granularity: str = parameter(
        "subgraph",
        "what fast and metaschedule measure: subgraph, each fused function as it runs; operator, "
        "its anchor alone, whose schedule the functions around it take over",
        choices=GRANULARITIES,
        used_by=MEASURING,
    )
    topk: int = parameter(
        20,
        "most configurations of one function that fast measures; 20 means 4 for a model of the "
        "flavor sklearn, xgboost or lightgbm",
        least=1,
        used_by=("fast",),
    )
    trials: int = parameter(
        64, "most candidates that metaschedule measures", least=0, used_by=("metaschedule",)
    )
    time_budget: float = parameter(
        0.0,
        "most seconds to tune for; 0: no limit, or 10 for a model of the flavor sklearn, xgboost "
        "or lightgbm, and for one of pytorch below 1 MB; with dtype int8 or auto what the whole "
        "command may take: calibration and the sensitivity analysis 20% of it each, tuning 15%",
        least=0,
        used_by=MEASURING,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartParameters(Group):
    """Where tuning begins."""

    warm_start: str = parameter("", "run id of an earlier tune run to begin from")
