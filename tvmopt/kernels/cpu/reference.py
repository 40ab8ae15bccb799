"""Reference schedule of a CPU function, for correctness checks of the candidates."""

from __future__ import annotations

from tvm import tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.families import families_of


def reference(func: tirx.PrimFunc, arch: CpuArch) -> tirx.PrimFunc:
    """Return ``func`` with the default schedule of the first reference family that matches it."""
    for family in families_of(arch):
        if family.is_reference:
            try:
                return emit(func, family.config_type(family.name, arch)).mod["main"]
            except NotApplicable:
                continue
    return func
