"""CpuFamily: a CPU family whose kernels are one function's schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx

from tvmopt.kernels.family import ConfigHint, Family, Form
from tvmopt.kernels.workload import Refusal


class CpuFamily(Family[Form, ConfigHint]):
    """A CPU kernel family.

    Attributes:
        schedule: Schedules a function with a configuration.
    """

    schedule: Callable[[tirx.PrimFunc, Any], s_tir.Schedule | Refusal]

    def emit(self, func: tirx.PrimFunc, hint: ConfigHint) -> s_tir.Schedule | Refusal:
        """Schedule ``func`` with the configuration ``hint``."""
        return self.schedule(func, hint)
