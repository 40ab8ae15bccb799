"""Emulators that run kernels for other CPUs and for GPUs here. They check results, not speed."""

from .program import run
from .tools import Tools, find_tools

__all__ = ["Tools", "find_tools", "run"]
