"""Apply a change to every TensorIR function of a module."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx


def change_each(
    mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """Return a copy of ``mod`` with ``change`` applied to every TensorIR function."""
    out = mod.clone()
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            out.update_func(out.get_global_var(var.name_hint), change(func))
    return out
