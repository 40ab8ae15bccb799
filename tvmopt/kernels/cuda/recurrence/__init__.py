"""Recurrent layers on GPUs: one function that launches a kernel for each step."""

from __future__ import annotations

from tvmopt.kernels.cuda.recurrence.kernel import recurrence_kernel, scratch, weight_shapes

__all__ = ["recurrence_kernel", "scratch", "weight_shapes"]
