"""Run CUDA kernels on a CPU, and check their results and their synchronisation."""

from .process import ORDERS, run

__all__ = ["ORDERS", "run"]
