"""The interface of a kernel family, for CPUs and GPUs alike.

Who calls what, in the order of a tuning run::

    rank(workload, arch)    for each family: match -> rank -> sort by predicted cycles
    policy.emit_config(k)   the candidates to measure: share and near say how many of each family
    emit(func, hint)        for the few candidates that are built, in a worker process
    first_choice(func)      the first candidate that emits: no measuring
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
    """One way to compute a kind of workload on one kind of device.

    Attributes:
        name: What hints, tuning records and reports call the family.
        kind: What it computes, e.g. ``"gemm"``; families of one kind compete.
        has_cost_model: Whether the predicted cycles of its candidates can be compared with those of
            other families. Where they cannot, its candidates go in a fixed order.
        exclusive: Whether no family after it is asked about a workload that it matches.
        last_resort_follows: Whether the last family's first candidate is ranked behind its own,
            for the case that none of them can be emitted.
        share: Most candidates of the family that are tried where another family leads.
        beside: Candidates that are tried beside the best of families with a cost model, for a
            family without one.
        is_reference: Whether its default configuration is what candidates are checked against.
        budget: Share of a function's candidates that are measured where the family leads, for
            kernels that take long to build.
    """

    name: str
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
        """Return the workload in the form that the family computes, or why it does not match."""

    @abc.abstractmethod
    def rank(self, form: Form, arch: Any) -> Sequence[Ranked[ConfigHint]]:
        """Return every sensible configuration with its predicted cycles, in any order."""

    @abc.abstractmethod
    def emit(self, func: tirx.PrimFunc, hint: ConfigHint) -> s_tir.Schedule | tirx.PrimFunc | None:
        """Emit the kernel of ``func`` that ``hint`` configures.

        Returns:
            A fresh schedule of the module ``{"main": func}`` whose trace replays; or a function in
            place of ``func``, where the kernel is generated; or None where the function or the hint
            does not fit.

        Raises:
            tvm.s_tir.ScheduleError: When a schedule primitive refuses.
        """

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether to ask the family at all, given what earlier families found."""
        return True

    def weight(self, form: Form, arch: Any, found: Sequence[Found]) -> float:
        """Return by what to multiply predicted cycles before other families' are compared."""
        return 1.0

    def near(self, form: Form) -> float:
        """Return how many times the best's cycles a candidate may be predicted, to be tried."""
        return 1.5

    def leads(self, workload: Workload) -> bool:
        """Return whether the first candidate goes before all others, for a family without model."""
        return False

    def signature(self, form: Form) -> str:
        """Return text that is equal for workloads that differ in their epilogue alone."""
        return ""

    def build_effort(self, hint: ConfigHint) -> float:
        """Return the time to build the kernel, relative to that of other kernels."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class Found:
    """What a family makes of a workload.

    Attributes:
        family: The family.
        form: The workload in its form.
        ranked: Its candidates, those that can run, weighted, the first choice first.
    """

    family: Family[Any, Any]
    form: Any
    ranked: tuple[Ranked[Any], ...]
