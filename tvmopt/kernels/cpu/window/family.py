"""Depthwise convolution and pooling on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.tile_signature import tile_signature
from tvmopt.kernels.cpu.window.config import NAME, WindowConfig
from tvmopt.kernels.cpu.window.schedule import WindowForm, emit, match_window
from tvmopt.kernels.cpu.window.space import window_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class Window(CpuFamily[WindowForm, WindowConfig]):
    """Keeps a register tile of neighbouring outputs x channel vectors; unrolls the window."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = WindowConfig
    kind = "window"

    def match(self, workload: Workload, arch: CpuArch) -> WindowForm | Refusal:
        """Return the only reduction, if it is over a window of each channel."""
        return matched(workload, match_window)

    def rank(self, form: WindowForm, arch: CpuArch) -> Sequence[Ranked[WindowConfig]]:
        """Return the configuration space: tiles and loop orders, with predicted cycles."""
        return window_hints(form, arch)

    def signature(self, form: WindowForm) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return tile_signature(form)
