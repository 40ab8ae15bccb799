"""Recurrent layers on CPUs: one function with a serial loop over time."""

from __future__ import annotations

from tvmopt.kernels.cpu.recurrence.kernel import (
    RecurrenceTiling,
    padded_units,
    recurrence_kernel,
    weight_shapes,
)

__all__ = ["RecurrenceTiling", "padded_units", "recurrence_kernel", "weight_shapes"]
