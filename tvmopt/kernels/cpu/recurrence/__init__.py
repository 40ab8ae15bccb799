"""Recurrent layers on CPUs: one function with a serial loop over time."""

from __future__ import annotations

from tvmopt.kernels.cpu.recurrence.kernel import (
    Tiling,
    kernel_operands,
    padded_units,
    recurrence_kernel,
)

__all__ = ["Tiling", "kernel_operands", "padded_units", "recurrence_kernel"]
