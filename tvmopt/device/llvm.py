"""TVM's target for a CPU that LLVM knows by name."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def llvm_target(
    mcpu: str,
    mattr: tuple[str, ...],
    threads: int,
    opt_level: int | None = None,
    mtriple: str = "",
) -> Any:
    """The ``tvm.target.Target`` of a CPU and its features; LLVM's level is 3 by default.

    Without ``mtriple`` the CPU is one of this machine's kind.
    """
    import tvm

    config: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}
    if mtriple:
        config["mtriple"] = mtriple
    if mattr:
        config["mattr"] = list(mattr)
    if opt_level is not None:
        config["opt-level"] = opt_level
    return tvm.target.Target(config)


@functools.cache
def llvm_features(mcpu: str, mattr: tuple[str, ...], mtriple: str = "") -> frozenset[str]:
    """Every feature of a CPU, in LLVM's names."""
    from tvm.target.codegen import llvm_get_cpu_features

    target = llvm_target(mcpu, mattr, 1, mtriple=mtriple)
    return frozenset(str(feature) for feature in llvm_get_cpu_features(target))


def pass_config(isa: str) -> dict[str, Any]:
    """Settings of TVM's passes under which functions are compiled for ``isa``.

    Where RISC-V has V, TVM 0.27 guards vector stores of ragged tiles by masks, and fails.
    """
    return {"tirx.enable_buffer_level_predication": False} if isa == "riscv64" else {}


@functools.cache
def llvm_cpus(mtriple: str = "") -> frozenset[str]:
    """LLVM's names of every CPU of a platform, this machine's by default."""
    from tvm.target.codegen import llvm_get_cpu_archlist

    target = llvm_target("generic", (), 1, mtriple=mtriple)
    return frozenset(str(name) for name in llvm_get_cpu_archlist(target))
