"""TVM's target for a CPU that LLVM knows by name."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def llvm_target(
    mcpu: str, mattr: tuple[str, ...], threads: int, opt_level: int | None = None
) -> Any:
    """The ``tvm.target.Target`` of a CPU and its features; LLVM's level is 3 by default."""
    import tvm

    config: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}
    if mattr:
        config["mattr"] = list(mattr)
    if opt_level is not None:
        config["opt-level"] = opt_level
    return tvm.target.Target(config)
