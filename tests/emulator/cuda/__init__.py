"""CUDA kernels run on a CPU: their numbers, and whether they wait for what they need."""

from .process import ORDERS, run

__all__ = ["ORDERS", "run"]
