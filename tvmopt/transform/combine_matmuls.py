"""Compute matmuls of the same few rows with several weights as one matmul.

before -> after, Q, K and V of a decoder step (:class:`tvm.relax.transform.CombineParallelMatmul`
does the same for bound parameters)::

    q = matmul(x, wq); k = matmul(x, wk); v = matmul(x, wv)
    ->
    y = matmul(x, concat(wq, wk, wv, axis=1))
    q = strided_slice(y, ...); k = strided_slice(y, ...); v = strided_slice(y, ...)

A GEMV of few rows takes as long as its weight takes to load, plus a launch and the time until loads
run at full rate. The pass saves the latter. Slices cost nothing where another kernel reads them;
elsewhere each is a launch, and so is what the GEMV computed in its epilogue. The pass combines
where it saves more launches than it adds.

Two int4 matmuls of float16 become one, too, where elementwise operators join their results and
nothing else reads them: gate and up of a feed-forward network. The kernel of the int4 GEMV computes
these operators (:mod:`.merge_into_gemv`); where it cannot, an elementwise kernel replaces a GEMV.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvmopt.kernels.cuda.gemv.schedule import MAX_ROWS
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention.producers import Producers, operator_name
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.layer_facts import is_elementwise
from tvmopt.transform.packed_weight import PackedWeight, packed_weight, side_by_side

# Operators that are views, or that the function behind them reads through.
_READ_THROUGH = frozenset({"reshape", "expand_dims", "squeeze", "permute_dims"})
# Operators that run as a kernel in any case, and may read a slice.
_KERNELS = frozenset({"concat", "strided_slice", "split", "take", "repeat", "broadcast_to"})

_Weight = np.ndarray | PackedWeight


@dataclasses.dataclass(frozen=True)
class _Member:
    """A matmul with a constant weight.

    Attributes:
        var: The variable of the result.
        weight: The weight: (K, N), or packed.
        rows: N.
    """

    var: relax.Var
    weight: _Weight
    rows: int


@tvm.transform.module_pass(opt_level=0, name="CombineMatmuls")
class CombineMatmuls:
    """Combine matmuls of ``main`` that share few rows of activations."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass."""
        groups = [group for group in _groups(mod) if len(group) > 1]
        if not groups:
            return mod
        gone = {member.var for group in groups for member in group[1:]}
        kept = [anchor for anchor in anchors(mod) if anchor.var not in gone]
        rewrite = _Combine(mod, groups)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        out = relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())
        return with_layers(out, [a.name for a in kept], [a.index for a in kept])


def _groups(mod: tvm.IRModule) -> list[list[_Member]]:
    """Return the matmuls to combine."""
    graph = Producers(mod["main"])
    found: dict[object, list[_Member]] = collections.defaultdict(list)
    top = {binding.var for block in mod["main"].body.blocks for binding in block.bindings}
    for anchor in anchors(mod):
        x, shape = anchor.call.args[0], static_shape(anchor.call.args[0])
        if anchor.op != "matmul" or not isinstance(x, relax.Var) or anchor.var not in top:
            continue
        weight = _weight(anchor.call.args[1], graph)
        if weight is None or not shape or math.prod(shape[:-1]) > MAX_ROWS:
            continue
        rows = int(static_shape(anchor.var)[-1])  # type: ignore[index]
        key = (x, str(anchor.var.ty.dtype), _kind(weight))
        found[key].append(_Member(anchor.var, weight, rows))
    return [group for group in found.values() if _saves(group, graph) or _is_gated(group, graph)]


def _weight(expr: relax.Expr, graph: Producers) -> _Weight | None:
    """Return a constant weight of two axes; None for others."""
    packed = packed_weight(graph.made(expr))
    if packed is not None:
        return packed
    values = graph.constant(expr)
    return values if values is not None and values.ndim == 2 else None


def _kind(weight: _Weight) -> object:
    """Return a key of the weights that concatenate to one weight."""
    return str(weight.dtype) if isinstance(weight, np.ndarray) else weight.kind()


def _saves(group: list[_Member], graph: Producers) -> bool:
    """Return whether one matmul needs fewer launches than the members of ``group``."""
    further = sum(not _is_read_by_kernels(member.var, graph) for member in group)
    return len(group) - 1 > further


def _is_gated(group: list[_Member], graph: Producers) -> bool:
    """Return whether elementwise operators join two int4 matmuls, which nothing else reads."""
    weights = [member.weight for member in group]
    if len(group) != 2 or group[0].rows != group[1].rows:
        return False
    if not all(isinstance(w, PackedWeight) and w.bits == 4 and _is_half(w) for w in weights):
        return False
    readers = [_elementwise_readers(member.var, graph) for member in group]
    joined = readers[0] & readers[1]
    shape = static_shape(group[0].var)
    if any(static_shape(var) != shape for var in readers[0] | readers[1]):
        return False
    # Every value but the last is read by these operators only.
    inside = {member.var for member in group} | readers[0] | readers[1]
    last = {var for var in inside if not set(graph.users(var)) <= inside}
    return len(last) == 1 and last <= joined


def _is_half(weight: PackedWeight) -> bool:
    return str(weight.scales.dtype) == "float16"


def _elementwise_readers(var: relax.Var, graph: Producers) -> set[relax.Var]:
    """Return the results of the elementwise operators that read ``var``, directly or not."""
    seen: set[relax.Var] = set()
    left = [var]
    while left:
        for user in graph.users(left.pop()):
            call = None if user is None else graph.made(user)
            if user in seen or not isinstance(call, relax.Call) or not is_elementwise(call):
                continue
            seen.add(user)
            left.append(user)
    return seen


def _is_read_by_kernels(var: relax.Var, graph: Producers) -> bool:
    """Return whether only kernels that may slice ``var`` read it, after cheap operators."""
    seen, left = {var}, [var]
    while left:
        for user in graph.users(left.pop()):
            call = None if user is None else graph.made(user)
            if user is None or not isinstance(call, relax.Call):
                return False
            if is_elementwise(call) or operator_name(call) in _READ_THROUGH:
                if user not in seen:
                    seen.add(user)
                    left.append(user)
            elif operator_name(call) not in _KERNELS:
                return False
    return True


def _concatenated(group: list[_Member]) -> relax.Expr:
    """Return the weights of ``group`` side by side."""
    packed = [member.weight for member in group if isinstance(member.weight, PackedWeight)]
    if packed:
        return side_by_side(packed).call()
    dense = np.concatenate([np.asarray(member.weight) for member in group], axis=1)
    return relax.const(dense, str(dense.dtype))


@mutator
class _Combine(BoundCallMutator):
    def __init__(self, mod: tvm.IRModule, groups: list[list[_Member]]) -> None:
        super().__init__(mod)
        self._groups = {member.var: group for group in groups for member in group}
        self._combined: dict[relax.Var, relax.Var] = {}

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        group = self._groups.get(var)
        if group is None or operator_name(call) != "matmul":
            return None
        first = group[0].var
        if first not in self._combined:
            weight = self.builder_.emit(_concatenated(group))
            x = self.visit_expr(call.args[0])
            self._combined[first] = self.builder_.emit(
                relax.op.matmul(x, weight, out_dtype=str(call.ty.dtype))
            )
        ends = np.cumsum([member.rows for member in group])
        at = [member.var for member in group].index(var)
        start, end = int(ends[at]) - group[at].rows, int(ends[at])
        return relax.op.strided_slice(
            self._combined[first], [call.ty.ndim - 1], [start], [end], assume_inbound=True
        )
