"""What a search tries, within which limits, in which study."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import (
    DTYPES,
    GRANULARITIES,
    OBJECTIVES,
    STRATEGIES,
    check_layouts,
    check_objectives,
)
from tvmopt.parameters.declare import Group, needed, parameter
from tvmopt.parameters.groups.running import StageLimitParameters
from tvmopt.parameters.groups.tuning import TuningParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpaceParameters(Group):
    """What a search tries."""

    dtypes: str = parameter(
        "",
        f"dtypes to try: {', '.join(DTYPES)}; default: those with a higher peak rate than float32, "
        "and float32",
        choices=DTYPES,
        listed=True,
    )
    layouts: str = parameter(
        "",
        "layouts to try; default: NHWC, NCHW16c, NCHW for models with convolutions",
        listed=True,
        check=check_layouts,
    )
    strategies: str = parameter(
        "",
        f"efforts of tuning to try: {', '.join(STRATEGIES)}; default: all but none",
        choices=STRATEGIES,
        listed=True,
    )
    granularities: str = parameter(
        "",
        f"granularities of tuning to try: {', '.join(GRANULARITIES)}; default: both",
        choices=GRANULARITIES,
        listed=True,
    )
    topk: int = parameter(
        TuningParameters.topk, "most configurations of one function that fast measures", least=1
    )
    space: str = parameter(
        "",
        "YAML file with values of any dimension of the search, such as skip_layers and layouts",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchLimitParameters(Group):
    """Hard limits and objectives of a search."""

    max_library_mb: float = parameter(
        0.0, "largest library in MB (10^6 bytes); 0: no limit", least=0
    )
    max_memory_mb: float = parameter(
        0.0, "largest peak memory of inference in MB; 0: no limit", least=0
    )
    max_p99_ms: float = parameter(0.0, "largest 99th percentile of latency; 0: no limit", least=0)
    objectives: str = parameter(
        "latency",
        f"what is to be small: {OBJECTIVES[0]}, and after it {' and '.join(OBJECTIVES[1:])}",
        listed=True,
        check=check_objectives,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetParameters(Group):
    """What a study as a whole may spend."""

    trials: int = parameter(24, "most trials of the study after the baseline; 0: no limit", least=0)
    time_budget: float = parameter(
        1800.0, "most seconds that the study is worked on; 0: no limit", least=0
    )
    patience: int = parameter(
        0, "end after so many trials in a row without a better artifact; 0: no limit", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialLimitParameters(Group):
    """What one stage of a trial may use."""

    trial_timeout: float = parameter(1200.0, "most seconds for one stage of a trial", least=0)
    memory_limit: float = parameter(
        StageLimitParameters.memory_limit,
        "most memory in MB for one stage; 0: 80% of what this machine or container allows",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyParameters(Group):
    """Which study, in which database."""

    study: str = parameter(
        "", "name of the study to begin or to go on with; default: one for the same question"
    )
    storage: str = parameter(
        "",
        "database of studies (sqlite:///file.db, postgresql://...); default: tvmopt-studies.db "
        "beside the tracking store",
    )
    seed: int = parameter(0, "seed of what is tried in which order", least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinParameters(Group):
    """Which study a worker joins, and where the model lies on its machine."""

    study: str = needed("name of the study to join")
    storage: str = parameter(
        StudyParameters.storage,
        "database of studies (sqlite:///file.db, postgresql://...); default: tvmopt-studies.db "
        "beside the tracking store",
    )
    model: str = parameter("", "the study's model on this machine; default: where it lay")
    data: str = parameter("", "the study's data on this machine; default: where it lay")
    seed: int = parameter(
        0, "seed of what is tried in which order; 0: one for each process", least=0
    )
