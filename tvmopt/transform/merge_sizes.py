"""Join the modules of several sizes of a network into one, whose library holds them all.

before -> after::

    main(x: (16, 8)): matmul(x, w)      main(x: (16, 8)): matmul(x, w)
    main(x: (1, 8)): matmul(x, w)       main_1(x: (1, 8)): matmul_1(x, w)

Kernels that are equal are kept once. Equal constants are stored once by the code generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvmopt.runtime.sizes import of_size
from tvmopt.transform.shared_kernels import RenameFunctions, SharedKernels


def merge_sizes(mods: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """Return one module with the functions of all; Relax functions have the number of the size.

    Args:
        mods: Scheduled modules of the sizes.
    """
    if len(mods) == 1:
        return mods[0]
    rename = RenameFunctions(mods[0])
    kernels = SharedKernels(mods[0])
    for size, mod in enumerate(mods[1:], start=1):
        rename.variables.clear()
        functions = sorted(mod.functions_items(), key=lambda item: item[0].name_hint)
        for var, func in functions:
            if isinstance(func, tirx.PrimFunc):
                rename.variables[var.name_hint] = kernels.find(func) or kernels.add(
                    _add(rename, func, of_size(var.name_hint, size)), func
                )
        for var, func in functions:
            if isinstance(func, relax.Function):
                name = of_size(var.name_hint, size)
                renamed = rename.visit_expr(func).with_attr("global_symbol", name)
                added = rename.builder_.add_func(renamed, name)
                assert added.name_hint == name, f"the network has a kernel of the name {name}"
    return rename.builder_.get()


def _add(rename: RenameFunctions, func: tirx.PrimFunc, name: str) -> GlobalVar:
    """Add a kernel under ``name``, or a name like it that is free; return its variable."""
    var = rename.builder_.add_func(func, name)
    if "global_symbol" in (func.attrs or {}):
        rename.builder_.update_func(var, func.with_attr("global_symbol", var.name_hint))
    return var
