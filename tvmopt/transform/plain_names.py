"""Rename inputs to valid C identifiers: ONNX names may contain slashes, dots and colons.

before -> after: ``main(gpu_0/data: ...)`` -> ``main(gpu_0_data: ...)``. GPU kernels are C++ source,
and their arguments keep the names of the network's inputs.
"""

from __future__ import annotations

import re

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@tvm.transform.module_pass(opt_level=0, name="PlainNames")
class PlainNames:
    """Rename the parameters of ``main``."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass."""
        main = mod["main"]
        taken: set[str] = set()
        names = [_plain(str(param.name), taken) for param in main.params]
        if names == [str(param.name) for param in main.params]:
            return mod
        out = mod.clone()
        out.update_func(mod.get_global_var("main"), _Rename(mod).renamed(main, names))
        return out


def _plain(name: str, taken: set[str]) -> str:
    """Return ``name`` as a C identifier that is not in ``taken``, and add it there."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = f"_{plain}" if not plain or plain[0].isdigit() else plain
    found, number = plain, 1
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    taken.add(found)
    return found


@mutator
class _Rename(PyExprMutator):
    def renamed(self, func: relax.Function, names: list[str]) -> relax.Function:
        """Return ``func`` with parameters of these names."""
        params = [relax.Var(n, p.ty) for n, p in zip(names, func.params, strict=True)]
        for old, new in zip(func.params, params, strict=True):
            self.set_var_remap(old, new)
        body = self.visit_with_new_scope(func.body)
        return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)
