"""Functions of one module in another: equal kernels are shared, the others get new names."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.structure import Structure


class SharedKernels:
    """Kernels by structure.

    Args:
        mod: Module whose kernels are the first.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._known: dict[Structure[None], GlobalVar] = {}
        for var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
            if isinstance(func, tirx.PrimFunc):
                self.add(var, func)

    def add(self, var: GlobalVar, func: tirx.PrimFunc) -> GlobalVar:
        """Add a kernel; return its variable."""
        self._known.setdefault(_key(func), var)
        return var

    def find(self, func: tirx.PrimFunc) -> GlobalVar | None:
        """Return the variable of an equal kernel; None if there is none."""
        return self._known.get(_key(func))


@mutator
class RenameFunctions(PyExprMutator):
    """Replace references to functions; ``variables`` maps old names to new variables."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.variables: dict[str, GlobalVar] = {}

    def visit_global_var_(self, op: GlobalVar) -> GlobalVar:
        """Return the new variable."""
        return self.variables.get(op.name_hint, op)


def _key(func: tirx.PrimFunc) -> Structure[None]:
    """Return the kernel as a key, without its name."""
    return Structure(func.without_attr("global_symbol") if func.attrs else func, None)
