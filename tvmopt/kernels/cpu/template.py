"""The one interface of this package: a template that schedules a PrimFunc as a hint says."""

from __future__ import annotations

import abc

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.hint import CpuHint


class Template(abc.ABC):
    """A way to schedule one family of functions.

    A template that does not fit returns None ("not applicable" is a value); one that fits but
    whose primitives refuse raises ``tvm.s_tir.ScheduleError``, which callers record before they
    try another hint.

    Attributes:
        name: What hints, reports and logs call this template.
    """

    name: str

    @abc.abstractmethod
    def apply(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says.

        Args:
            func: A function of static shape built of leaf blocks (see
                :func:`tvmopt.kernels.analysis.why_not_schedulable`).
            hint: A configuration, made for this template and function.

        Returns:
            A fresh schedule of the module ``{"main": func}``, or None when the template does not
            fit the function, or the hint does not.
        """
