"""Static memory planning across calls: allocate storage once, and pass it to the network.

before -> after::

    main(x):                                   storages():
      s = alloc_storage(4096)                    s = alloc_storage(4096)
      t = alloc_tensor(s, (1, 1024))             return (s,)
      f(x, t)                                main(x, s):
      return t                                   t = alloc_tensor(s, (1, 1024))
                                                 f(x, t)
                                                 return t

A captured CUDA graph uses fixed addresses, so the network's buffers must stay in place. The outputs
live in this storage, too: the caller copies them before the next call.
"""

from __future__ import annotations

import itertools

import tvm
from tvm import relax, tirx

from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.network import STORAGES
from tvmopt.runtime.sizes import of_size

_ALLOCATE = "relax.memory.alloc_storage"


@tvm.transform.module_pass(opt_level=0, name="LiftStorage")
class LiftStorage:
    """Lift storage allocations out of each size's ``main``.

    Runs after ``relax.transform.LowerAllocTensor``. A ``main`` with branches or dynamic sizes does
    not change.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass."""
        names = {var.name_hint for var, _ in mod.functions_items()}
        sizes = itertools.takewhile(lambda n: of_size(MAIN, n) in names, itertools.count())
        lifted = [
            (size, _lifted(mod[of_size(MAIN, size)], of_size(STORAGES, size))) for size in sizes
        ]
        if not any(found for _, found in lifted):
            return mod
        out = mod.clone()
        for size, found in lifted:
            if found is not None:
                network, allocate = found
                out.update_func(mod.get_global_var(of_size(MAIN, size)), network)
                out[tvm.ir.GlobalVar(of_size(STORAGES, size))] = allocate
        return out


def _lifted(main: relax.Function, name: str) -> tuple[relax.Function, relax.Function] | None:
    """Return the function that is given its storages, and the one ``name`` that allocates them."""
    body = main.body
    if not isinstance(body, relax.SeqExpr) or not _is_straight(body):
        return None
    taken: list[relax.VarBinding] = []
    blocks = []
    for block in body.blocks:
        kept = []
        for binding in block.bindings:
            if _allocates(binding):
                taken.append(binding)
            else:
                kept.append(binding)
        blocks.append(relax.BindingBlock(kept))
    given = relax.Function(
        [*main.params, *(binding.var for binding in taken)], relax.SeqExpr(blocks, body.body),
        main.ret_ty, is_pure=main.is_pure, attrs=main.attrs,
    )  # fmt: skip
    return given, _allocation(taken, main, name)


def _allocation(taken: list[relax.VarBinding], main: relax.Function, name: str) -> relax.Function:
    """Return the function that allocates and returns the storages."""
    fresh = [relax.Var(b.var.name, b.var.ty) for b in taken]
    bindings = [relax.VarBinding(v, b.value) for v, b in zip(fresh, taken, strict=True)]
    result = relax.Var("all", relax.TupleType([v.ty for v in fresh]))
    bindings.append(relax.VarBinding(result, relax.Tuple(fresh)))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    attrs = {"relax.force_pure": True} if "relax.force_pure" in (main.attrs or {}) else {}
    func = relax.Function([], body, result.ty, is_pure=main.is_pure)
    return func.with_attrs(attrs | {"global_symbol": name})


def _allocates(binding: relax.Binding) -> bool:
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != _ALLOCATE:
        return False
    return all(isinstance(size, tirx.IntImm) for size in value.args[0].values)


def _is_straight(body: relax.SeqExpr) -> bool:
    """Return whether every run executes the same bindings and allocates the same bytes."""
    for block in body.blocks:
        for binding in block.bindings:
            value = binding.value if isinstance(binding, relax.VarBinding) else None
            if value is None or isinstance(value, relax.If):
                return False
            named = isinstance(value, relax.Call) and getattr(value.op, "name", "") == _ALLOCATE
            if named and not _allocates(binding):
                return False
    return True
