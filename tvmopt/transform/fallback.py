"""Fallback function with direct convolutions, for inputs where Winograd convolution gives NaN.

before -> after::

    main(x):                         main(x):
      return winograd(x, u)            return winograd(x, u)
                                     main_direct(x):
                                       return conv2d_direct(x, w)

The runtime calls it when an output of ``main`` contains NaN (:mod:`tvmopt.runtime.fallback`).
Layers that are equal in both functions share one kernel and its weights.
"""

from __future__ import annotations

import dataclasses

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from tvmopt.kernels.winograd_matrices import WINOGRAD_ATTR
from tvmopt.runtime.fallback import FALLBACK
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import DIRECT, Plan
from tvmopt.transform.shared_kernels import RenameFunctions, SharedKernels

_SUFFIX = "_direct"


def wants_fallback(lowered: tvm.IRModule) -> bool:
    """Return whether a lowered CPU module has Winograd convolutions, called only by ``main``."""
    callers = sum(isinstance(func, relax.Function) for _, func in lowered.functions_items())
    return callers == 1 and has_winograd(lowered)


def has_winograd(lowered: tvm.IRModule) -> bool:
    """Return whether a lowered CPU module has Winograd convolutions."""
    found: list[s_tir.SBlock] = []

    def visit(block: s_tir.SBlock) -> None:
        if WINOGRAD_ATTR in (block.annotations or {}):
            found.append(block)

    for _, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return bool(found)


def lower_direct(mod: tvm.IRModule, target: tvm.target.Target, plan: Plan) -> tvm.IRModule:
    """Lower ``mod`` in the layouts of ``plan``, with direct convolutions only.

    Args:
        mod: Module of Relax operators.
        target: Target to compile for.
        plan: Implementation of each layer that differs from the converted module.
    """
    direct = {
        layer: dataclasses.replace(chosen, algorithm=DIRECT) for layer, chosen in plan.items()
    }
    return lower(mod, target, winograd=False, plan=direct)


def add_fallback(mod: tvm.IRModule, lowered: tvm.IRModule, direct: tvm.IRModule) -> tvm.IRModule:
    """Add the ``main`` of ``direct`` to ``mod`` as function ``FALLBACK``.

    Args:
        mod: ``lowered`` after scheduling; function names are unchanged.
        lowered: A lowered module.
        direct: The same network from :func:`lower_direct`. Functions that ``lowered`` has too are
            shared; the others are added.
    """
    kernels = SharedKernels(lowered)
    rename = RenameFunctions(mod)
    for var, func in sorted(direct.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            twin = kernels.find(func)
            rename.variables[var.name_hint] = (
                rename.builder_.add_func(func, f"{var.name_hint}{_SUFFIX}")
                if twin is None
                else mod.get_global_var(twin.name_hint)
            )
    main = rename.visit_expr(direct["main"])
    rename.builder_.add_func(main.with_attr("global_symbol", FALLBACK), FALLBACK)
    return rename.builder_.get()
