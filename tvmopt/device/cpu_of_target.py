"""The CPU that a TVM target describes."""

from __future__ import annotations

import tvm

from tvmopt import host
from tvmopt.device.cpu import CpuArch
from tvmopt.device.features import required_cpu_flags, vector_registers
from tvmopt.device.llvm import llvm_features


def cpu_of_target(target: tvm.target.Target) -> CpuArch:
    """Return what a target says about its CPU; the caches' sizes are defaults."""
    mtriple = str(target.attrs.get("mtriple", ""))
    isa = {"arm64": "aarch64"}.get(first := mtriple.split("-")[0], first) or host.isa()
    mcpu = str(target.attrs.get("mcpu", "generic"))
    mattr = tuple(map(str, target.attrs.get("mattr", ())))
    flags = required_cpu_flags(isa, llvm_features(mcpu, mattr, mtriple))
    bits, registers = vector_registers(isa, flags)
    cores = int(target.attrs.get("num-cores", 1))
    return CpuArch(mcpu, isa, cores, bits, registers, mattr=mattr, mtriple=mtriple)
