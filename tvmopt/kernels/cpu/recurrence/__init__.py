"""Recurrent layers on CPUs: one function with a serial loop over time."""

from __future__ import annotations

from tvmopt.kernels.cpu.recurrence.integer_gemv import zero_point
from tvmopt.kernels.cpu.recurrence.kernel import parameters_in, recurrence_kernel
from tvmopt.kernels.cpu.recurrence.tiling import (
    RecurrenceTiling,
    block_steps,
    input_groups,
    padded_units,
)

__all__ = [
    "RecurrenceTiling",
    "block_steps",
    "input_groups",
    "padded_units",
    "parameters_in",
    "recurrence_kernel",
    "zero_point",
]
