"""Functions of one module in another: equal kernels are shared, the others get new names."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator


class SharedKernels:
    """Kernels by structure.

    Args:
        mod: Module whose kernels are the first.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._known: dict[int, list[tuple[GlobalVar, tirx.PrimFunc]]] = {}
        for var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
            if isinstance(func, tirx.PrimFunc):
                self.add(var, func)

    def add(self, var: GlobalVar, func: tirx.PrimFunc) -> GlobalVar:
        """Add a kernel; return its variable."""
        bare = _nameless(func)
        self._known.setdefault(tvm_ffi.structural_hash(bare), []).append((var, bare))
        return var

    def find(self, func: tirx.PrimFunc) -> GlobalVar | None:
        """Return the variable of an equal kernel; None if there is none."""
        bare = _nameless(func)
        for var, other in self._known.get(tvm_ffi.structural_hash(bare), []):
            if tvm_ffi.structural_equal(bare, other):
                return var
        return None


@mutator
class RenameFunctions(PyExprMutator):
    """Replace references to functions; ``variables`` maps old names to new variables."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.variables: dict[str, GlobalVar] = {}

    def visit_global_var_(self, op: GlobalVar) -> GlobalVar:
        """Return the new variable."""
        return self.variables.get(op.name_hint, op)


def _nameless(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.without_attr("global_symbol") if func.attrs else func
