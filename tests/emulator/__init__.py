"""Kernels for other CPUs and for GPUs, run here under emulation: their numbers, not their speed."""

from .program import run
from .tools import Tools, find_tools

__all__ = ["Tools", "find_tools", "run"]
