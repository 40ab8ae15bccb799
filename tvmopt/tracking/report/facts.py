"""What decisions return, as data; :mod:`tvmopt.tracking.report.sentences` puts it in words."""

from __future__ import annotations

import dataclasses

from tvmopt.search.effort import Effort
from tvmopt.search.records import Record
from tvmopt.search.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class TuningComparison:
    """The winner of a search beside its own variant under other tuning efforts.

    Attributes:
        effort: Effort of the winner.
        p50: Its latency in the final round, in milliseconds.
        others: Effort and latency of each other finalist of the same variant.
    """

    effort: Effort
    p50: float
    others: tuple[tuple[Effort, float], ...]


@dataclasses.dataclass(frozen=True)
class GranularityComparison:
    """The winner of a search beside its own variant at the other tuning granularity.

    Attributes:
        granularity: Granularity of the winner.
        other: The other granularity.
        rival: Trial of the same variant at the other granularity; None when there is none.
        is_twin: Whether the rival differs in nothing but granularity.
        p50: Latency of the winner in milliseconds; 0 when the rival has none.
        rival_p50: Latency of the rival in milliseconds, measured like ``p50``.
        in_final: Whether both latencies come from the final round, not from the trials.
        overlap: Whether their 95% intervals in the final round overlap.
    """

    granularity: str
    other: str
    rival: Record | None = None
    is_twin: bool = False
    p50: float = 0.0
    rival_p50: float = 0.0
    in_final: bool = False
    overlap: bool = False


@dataclasses.dataclass(frozen=True)
class AliasGiven:
    """A version has an alias: it meets the accuracy bar.

    Attributes:
        version: The version.
        alias: The alias.
        metric: Metric of the accuracy.
        accuracy: Accuracy of the version.
        drop: Accuracy lost against the float model.
        max_accuracy_drop: Most accuracy that it may lose.
        held_out_samples: Number of samples; 0 for random inputs.
    """

    version: str
    alias: str
    metric: str
    accuracy: float
    drop: float
    max_accuracy_drop: float
    held_out_samples: int


@dataclasses.dataclass(frozen=True)
class PromotedBefore:
    """A version is the champion already, by the same measurement.

    Attributes:
        words: Sentence of that promotion, from the version's tags.
    """

    words: str


@dataclasses.dataclass(frozen=True)
class ChampionStays:
    """The current champion is better than the version.

    Attributes:
        name: Registered model.
        version: Version that is not promoted.
        champion: Version that stays champion.
        verdict: Result of measuring the two side by side; None when only their tags were compared.
        champion_ms: The champion's p50 by its tags, in milliseconds.
        version_ms: The version's p50 by its tags, in milliseconds.
    """

    name: str
    version: str
    champion: str
    verdict: Verdict | None = None
    champion_ms: float = 0.0
    version_ms: float = 0.0


@dataclasses.dataclass(frozen=True)
class Unproven:
    """A version cannot be checked here, because this machine does not run its target.

    Attributes:
        name: Registered model.
        version: The version.
        device: Device that it is compiled for.
        is_gpu: Whether the device is a GPU; else it is a CPU, of a board perhaps.
    """

    name: str
    version: str
    device: str
    is_gpu: bool


@dataclasses.dataclass(frozen=True)
class PromotionRefused:
    """A version does not earn the alias.

    Attributes:
        error: Message of the refusal; empty when no finalist of a search is left.
    """

    error: str = ""


@dataclasses.dataclass(frozen=True)
class Promotion:
    """Result of a promotion.

    Attributes:
        done: Whether the version has the alias now.
        outcome: Why.
    """

    done: bool
    outcome: AliasGiven | PromotedBefore | ChampionStays | Unproven | PromotionRefused


@dataclasses.dataclass(frozen=True)
class Importances:
    """Share of each parameter in the variance of the latency, or why there is none.

    Attributes:
        shares: Share by parameter, largest first; empty when it is not computed.
        trials: Number of finished trials of the space.
        needed: Least number of trials.
    """

    shares: dict[str, float]
    trials: int
    needed: int
