"""The one interface of this package: a rule that schedules a PrimFunc, and what came of it."""

from __future__ import annotations

import abc
import dataclasses

from tvm import s_tir, tirx

from tvmopt.arch.cpu import CpuArch


class ScheduleRule(abc.ABC):
    """A way to schedule one family of functions.

    :func:`tvmopt.schedule.schedule_function` asks the rules of its list in order and takes the
    first schedule it is given. A rule that does not fit returns None ("not applicable" is a
    value); one that fits but whose primitives refuse raises ``tvm.s_tir.ScheduleError``, which
    the caller records before it asks the next rule.

    Attributes:
        name: What reports and logs call this rule.
    """

    name: str

    @abc.abstractmethod
    def apply(self, func: tirx.PrimFunc, arch: CpuArch) -> s_tir.Schedule | None:
        """Schedule ``func`` for ``arch``.

        Args:
            func: A function of static shape built of leaf blocks (see
                :func:`tvmopt.schedule.analysis.why_not_schedulable`).
            arch: The target's cores, vector width and caches.

        Returns:
            A fresh schedule of the module ``{"main": func}``, or None when the rule does not fit.
        """


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A function after scheduling.

    Attributes:
        func: The function, scheduled or as it was; its attributes are kept.
        rule: Name of the rule that served, or ``"unscheduled: <reason>"``.
    """

    func: tirx.PrimFunc
    rule: str
