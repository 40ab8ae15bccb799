"""TVM targets and CPU features by LLVM's CPU names."""

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
    """Return the ``tvm.target.Target`` of a CPU.

    Args:
        mcpu: LLVM's CPU name.
        mattr: Features added or removed, in LLVM's notation.
        threads: Number of cores.
        opt_level: LLVM's optimisation level; 3 by default.
        mtriple: LLVM's target triple; the host's by default.
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
    """Return all features of a CPU, in LLVM's names."""
    from tvm.target.codegen import llvm_get_cpu_features

    target = llvm_target(mcpu, mattr, 1, mtriple=mtriple)
    return frozenset(str(feature) for feature in llvm_get_cpu_features(target))


def pass_config(isa: str) -> dict[str, Any]:
    """Return the ``PassContext`` configuration to compile functions for ``isa``.

    With RISC-V V, TVM 0.27 predicates vector stores of partial tiles by masks, and fails.
    """
    return {"tirx.enable_buffer_level_predication": False} if isa == "riscv64" else {}


@functools.cache
def llvm_cpus(mtriple: str = "") -> frozenset[str]:
    """Return LLVM's names of all CPUs of a target triple; of the host's by default."""
    from tvm.target.codegen import llvm_get_cpu_archlist

    target = llvm_target("generic", (), 1, mtriple=mtriple)
    return frozenset(str(name) for name in llvm_get_cpu_archlist(target))
