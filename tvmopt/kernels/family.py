"""Interface of a kernel family, for CPUs and GPUs.

Callers, in the order of a tuning run::

    rank(workload, arch)     for each family: match -> rank -> sort by predicted cycles
    policy.emit_config(k)    top-k candidates to measure; share and near bound each family's part
    emit(func, hint)         only for candidates that are built, in a worker process
    schedule_function(func)  the top-1 candidate that emits, without measurement
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from tvm import s_tir, tirx

from tvmopt.kernels.hint import Hint
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

Form = TypeVar("Form")
ConfigHint = TypeVar("ConfigHint", bound=Hint)


class Family(abc.ABC, Generic[Form, ConfigHint]):
    """A kernel template with its matcher, configuration space and cost model.

    Attributes:
        name: Name of the family in hints, tuning records and reports.
        config_type: Type of its configurations.
        kind: Operator class, e.g. ``"gemm"``; families of one kind compete.
        has_cost_model: Whether its predicted cycles are comparable with other families' cycles.
            A family without a cost model lists its candidates in a fixed order.
        exclusive: Whether matching stops here: later families skip a workload that it matches.
        last_resort_follows: Whether the last family's top-1 candidate is ranked behind its own, in
            case none of them can be emitted.
        share: Maximum number of its candidates to measure when another family is ranked first.
        beside: For a family without a cost model: number of its candidates to measure beside the
            best candidates of families with one.
        is_reference: Whether its default configuration is the reference for correctness checks.
        budget: Fraction of a function's candidates to measure when the family is ranked first;
            below 1 for kernels that take long to build.
    """

    name: str
    config_type: type[Hint]
    kind: str
    has_cost_model: bool = True
    exclusive: bool = False
    last_resort_follows: bool = False
    share: int = 0
    beside: int = 0
    is_reference: bool = False
    budget: float = 1.0

    @abc.abstractmethod
    def match(self, workload: Workload, arch: Any) -> Form | Refusal:
        """Match ``workload``.

        Returns:
            The family's normalised form of the workload, or the reason why it does not match.
        """

    @abc.abstractmethod
    def rank(self, form: Form, arch: Any) -> Sequence[Ranked[ConfigHint]]:
        """Return the configuration space with predicted cycles, in any order."""

    @abc.abstractmethod
    def emit(
        self, func: tirx.PrimFunc, hint: ConfigHint
    ) -> s_tir.Schedule | tirx.PrimFunc | Refusal:
        """Emit the kernel of ``func`` that ``hint`` configures.

        Returns:
            A fresh schedule of the module ``{"main": func}`` with a replayable trace; or a PrimFunc
            that replaces ``func`` if the kernel is generated; a refusal if function or hint do not
            fit.

        Raises:
            tvm.s_tir.ScheduleError: When a schedule primitive fails.
        """

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether to match this family at all, given the matches of earlier families."""
        return True

    def weight(self, form: Form, arch: Any, found: Sequence[Found]) -> float:
        """Return the factor on predicted cycles that makes them comparable across families."""
        return 1.0

    def near(self, form: Form) -> float:
        """Return the maximum of predicted cycles over the top-1's for a candidate to be tried."""
        return 1.5

    def leads(self, workload: Workload) -> bool:
        """Return whether its first candidate is ranked top-1; for a family without cost model."""
        return False

    def signature(self, form: Form) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return ""

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return whether NaN and infinities may reach further outputs than they do in ``func``.

        NaN may also take the place of an infinity, and an infinity that of NaN. No kernel gives a
        finite number where ``func`` gives none.
        """
        return False

    def overflows_alike(self, func: tirx.PrimFunc) -> bool:
        """Return whether results overflow to an infinity exactly where ``func`` does.

        False where sums of parts stay finite within a thousandth of the largest number, or where
        subnormal numbers count as zero.
        """
        return True

    def build_effort(self, hint: ConfigHint) -> float:
        """Return the relative build time of the kernel; 1.0 is a usual kernel."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class Found:
    """A successful match of a family, with its candidates.

    Attributes:
        family: The family.
        form: Its normalised form of the workload.
        ranked: Its candidates of finite predicted cycles, with the family's weight applied, in the
            order in which the family lists them.
    """

    family: Family[Any, Any]
    form: Any
    ranked: tuple[Ranked[Any], ...]
