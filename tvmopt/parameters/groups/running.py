"""What a command may use, reuse, or only print."""

from __future__ import annotations

import dataclasses

from tvmopt.parameters.declare import Group, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageLimitParameters(Group):
    """What one stage may use; changes no result."""

    stage_timeout: float = parameter(7200.0, "most seconds for one stage; 0: no limit", least=0)
    memory_limit: float = parameter(
        0.0,
        "most memory in MB for one stage; 0: 80% of what this machine or container allows",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReuseParameters(Group):
    """Whether earlier stages are reused."""

    no_cache: bool = parameter(False, "true: do every stage again, reuse none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRunParameters(Group):
    """Whether the command only says what it would do."""

    dry_run: bool = parameter(
        False, "true: print the resolved parameters and what would run or be reused; run nothing"
    )
