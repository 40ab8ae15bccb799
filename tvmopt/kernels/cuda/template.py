"""The interface of GPU templates."""

from __future__ import annotations

import abc

from tvm import s_tir, tirx

from tvmopt.kernels.cuda.hint import CudaHint


class GpuTemplate(abc.ABC):
    """A way to make kernels of one family of functions.

    A template that does not fit returns None ("not applicable" is a value); one that fits but
    whose primitives refuse raises ``tvm.s_tir.ScheduleError``, which callers record before they
    try another hint.

    Attributes:
        name: What hints, reports and logs call this template.
    """

    name: str

    @abc.abstractmethod
    def apply(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | tirx.PrimFunc | None:
        """Make the kernel of ``func`` that ``hint`` says.

        Args:
            func: A function as FuseTIR leaves it.
            hint: A configuration, made for this template and function.

        Returns:
            A fresh schedule of the module ``{"main": func}``, whose trace replays; or a function
            that takes ``func``'s place without a trace, where the kernel is generated; or None
            when the template does not fit the function, or the hint does not.
        """
