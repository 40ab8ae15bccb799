"""Recurrent layers: what a layer is, and the parts that kernels of all devices share."""

from __future__ import annotations

from tvmopt.kernels.recurrence.layer import GATES, OPERANDS, Activation, Recurrence

__all__ = ["GATES", "OPERANDS", "Activation", "Recurrence"]
