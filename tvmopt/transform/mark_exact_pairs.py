"""Mark functions whose constant int8 weights ``vpmaddubsw`` multiplies exactly.

A schedule sees no values of constants. So this pass looks at the weights of all calls of a function
and says what a kernel may rely on.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.intrinsics.choose import wants_exact_pairs
from tvmopt.kernels.exact_pairs import EXACT_PAIRS, is_exact
from tvmopt.kernels.scheduled import FREE_ATTR
from tvmopt.kernels.structure import Structure
from tvmopt.kernels.workload import Refusal

_WEIGHT = "int8"
# Functions whose weight is kept: a network and its fallback have nearly all in common.
_KEPT = 512


@tvm.transform.module_pass(opt_level=0, name="MarkExactPairs")
class MarkExactPairs:
    """Set ``EXACT_PAIRS`` on the contractions whose weights have exact pairs in every call.

    Args:
        target: Target to compile for; the pass changes nothing where its CPU has no instruction
            that needs exact pairs, or has a better one.
    """

    def __init__(self, target: tvm.target.Target | None) -> None:
        self._wanted = target is not None and wants_exact_pairs(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to the fused functions."""
        calls = _calls(mod) if self._wanted else {}
        marked = {}
        for var, func in mod.functions_items():
            found = calls.get(var.name_hint)
            if isinstance(func, tirx.PrimFunc) and found and _has_exact_pairs(func, found):
                marked[var] = func.with_attr(EXACT_PAIRS, True)
        if not marked:
            return mod
        out = mod.clone()
        out.update(tvm.IRModule(marked))
        return out


def _calls(mod: tvm.IRModule) -> dict[str, list[list[relax.Expr]]]:
    """Return the arguments of every call of each function."""
    calls: dict[str, list[list[relax.Expr]]] = defaultdict(list)

    def visit(expr: relax.Expr) -> None:
        if is_call_tir(expr):
            arguments = expr.args[1]
            fields = arguments.fields if isinstance(arguments, relax.Tuple) else [arguments]
            calls[expr.args[0].name_hint].append(list(fields))

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return calls


def _has_exact_pairs(func: tirx.PrimFunc, calls: list[list[relax.Expr]]) -> bool:
    weight = _weight(Structure(func, None))
    return weight is not None and all(
        isinstance(fields[weight.param], GenericConst)
        and is_exact(np.moveaxis(fields[weight.param].value.numpy(), weight.dim, -1))
        for fields in calls
    )


@dataclasses.dataclass(frozen=True)
class _Weight:
    """The int8 weight of a contraction: its parameter, and the dimension along K."""

    param: int
    dim: int


@functools.lru_cache(maxsize=_KEPT)
def _weight(structure: Structure[None]) -> _Weight | None:
    """Return the weight of a function; None where it is no contraction with an int8 weight."""
    func = structure.func
    free = [int(i) for i in (func.attrs or {}).get(FREE_ATTR) or []]
    if not any(str(func.params[i].dtype) == _WEIGHT for i in free):
        return None
    form = match_contraction(func)
    if isinstance(form, Refusal) or not form.constant or form.contiguous < 0:
        return None
    params = form.sch.mod["main"].params
    param = next(i for i in free if params[i].same_as(form.weight.buffer))
    axis = form.facts.axes[form.contiguous]
    shape = [int(extent) for extent in form.weight.buffer.shape]
    dim = _dimension(shape, form.weight.strides[form.contiguous] or 0, axis.extent)
    if dim is None or str(form.weight.buffer.dtype) != _WEIGHT:
        return None
    return _Weight(param, dim)


def _dimension(shape: list[int], stride: int, extent: int) -> int | None:
    """Return the dimension of a row-major buffer that an axis of stride and extent walks along."""
    for dim, size in enumerate(shape):
        if size == extent > 1 and math.prod(shape[dim + 1 :]) == stride:
            return dim
    return None
