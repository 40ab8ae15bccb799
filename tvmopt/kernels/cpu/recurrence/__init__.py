"""Recurrent layers on CPUs: one function with a serial loop over time."""

from __future__ import annotations

from tvmopt.kernels.cpu.recurrence.kernel import (
    RecurrenceTiling,
    kernel_operands,
    padded_units,
    recurrence_kernel,
)

__all__ = ["RecurrenceTiling", "kernel_operands", "padded_units", "recurrence_kernel"]
