"""Horizontal fusion: small independent elementwise kernels of a GPU network run in one launch.

before -> after, the kernels between the projections and the attention of a decoder step::

    q = rotary_q(qkv, cos, sin)
    k = rotary_k_concat(qkv, cos, sin, past_k)
    v = concat_v(qkv, past_v)
    ->
    q, k, v = horizontal_...(qkv, cos, sin, past_k, past_v)

A launch costs about a microsecond, more than such a kernel computes. Calls join a group as long as
none depends on another. The group runs before its first result is read. The pass runs on scheduled
functions (:mod:`tvmopt.kernels.cuda.common.one_launch`), so that tuning sees each function alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvmopt.kernels.cuda.common.one_launch import Member, fits, kernels_of, one_launch
from tvmopt.transform.attention.producers import operator_name

# Most bytes of an output, and most calls of a launch. A kernel that writes more takes many times as
# long as a launch, and might lose occupancy to the registers of another.
_MOST_BYTES, _MOST_CALLS = 16 << 20, 16
# Most launches past which a call is delayed: its inputs stay in memory.
_MOST_DELAY = 16
_NAME = "horizontal"


@tvm.transform.module_pass(opt_level=0, name="HorizontalFusion")
class HorizontalFusion:
    """Fuse independent elementwise kernels of a scheduled module; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to the dataflow blocks of every Relax function."""
        rewrite = _LaunchFusion(mod)
        mains = {v: f for v, f in mod.functions_items() if isinstance(f, relax.Function)}
        for var, func in mains.items():
            rewrite.builder.update_func(var, rewrite.function(func))
        if not rewrite.replaced:
            return mod
        out = rewrite.builder.get()
        gone = rewrite.replaced - _called(out)
        kept = {var: func for var, func in out.functions_items() if var.name_hint not in gone}
        out = tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
        return relax.transform.Normalize()(out)


def _called(mod: tvm.IRModule) -> set[str]:
    """Return the names of the functions that Relax functions refer to."""
    found: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GlobalVar):
            found.add(expr.name_hint)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


@dataclasses.dataclass
class _Group:
    """Calls for one launch, and bindings that read their results without a kernel.

    Attributes:
        calls: Bindings of the calls.
        after: Further bindings, which follow the launch.
        results: Variables of both.
        delay: Launches that run before the group, but after its first call in the program.
    """

    calls: list[relax.VarBinding] = dataclasses.field(default_factory=list)
    after: list[relax.VarBinding] = dataclasses.field(default_factory=list)
    results: set[relax.Var] = dataclasses.field(default_factory=set)
    delay: int = 0


class _LaunchFusion:
    """Rewrites Relax functions.

    Attributes:
        builder: Builder of the new module.
        replaced: Names of functions that launches replace, in at least one call.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.builder = relax.BlockBuilder(mod)
        self.replaced: set[str] = set()
        self._mod = mod
        self._launches: dict[object, GlobalVar] = {}
        self._nests: dict[GlobalVar, list[tirx.For]] = {}

    def function(self, func: relax.Function) -> relax.Function:
        """Return ``func`` with calls of one launch fused."""
        if not isinstance(func.body, relax.SeqExpr):
            return func
        blocks = [
            relax.DataflowBlock(self._bindings(block.bindings))
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in func.body.blocks
        ]
        body = relax.SeqExpr(blocks, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _bindings(self, bindings: Sequence[relax.Binding]) -> list[relax.Binding]:
        out: list[relax.Binding] = []
        group = _Group()
        for binding in bindings:
            depends = any(v in group.results for v in relax.analysis.free_vars(binding.value))
            if self._is_fusable(binding):
                if depends or not self._fits([*group.calls, binding]):
                    out += self._fused(group)
                    group = _Group()
                group.calls.append(binding)
                group.results.add(binding.var)
            elif depends and _is_view(binding):
                group.after.append(binding)
                group.results.add(binding.var)
            else:
                group.delay += bool(group.calls) and not _is_view(binding)
                if depends or group.delay > _MOST_DELAY or _writes_inputs(binding):
                    out += self._fused(group)
                    group = _Group()
                out.append(binding)
        return out + self._fused(group)

    def _is_fusable(self, binding: relax.Binding) -> bool:
        """Return whether ``binding`` calls small elementwise kernels with one output."""
        call = binding.value
        if not isinstance(binding, relax.VarBinding) or not isinstance(call, relax.Call):
            return False
        if operator_name(call) != "call_tir" or len(call.args) != 2:
            return False
        if not isinstance(call.args[1], relax.Tuple) or not isinstance(call.ty, relax.TensorType):
            return False
        callee = call.args[0]
        return (
            bool(self._nests_of(callee))
            and _bytes(self._mod[callee].params[-1]) <= _MOST_BYTES
            and self._fits([binding])
        )

    def _fits(self, calls: Sequence[relax.VarBinding]) -> bool:
        """Return whether one launch can compute ``calls``."""
        callees = [binding.value.args[0] for binding in calls]
        nests = [nest for callee in callees for nest in self._nests_of(callee)]
        buffers = [param for callee in callees for param in self._mod[callee].params]
        return len(calls) <= _MOST_CALLS and fits(nests, buffers)

    def _nests_of(self, callee: GlobalVar) -> list[tirx.For]:
        """Return the loop nests of a function that may join a launch; empty for others."""
        if callee not in self._nests:
            func = self._mod[callee]
            self._nests[callee] = kernels_of(func) if isinstance(func, tirx.PrimFunc) else []
        return self._nests[callee]

    def _fused(self, group: _Group) -> list[relax.Binding]:
        """Return the bindings of a group, with one call for its calls."""
        nests = sum(len(self._nests_of(binding.value.args[0])) for binding in group.calls)
        if nests < 2:
            return [*group.calls, *group.after]
        calls = sorted(group.calls, key=lambda binding: binding.value.args[0].name_hint)
        arguments: dict[relax.Expr, int] = {}
        inputs = [
            tuple(arguments.setdefault(arg, len(arguments)) for arg in b.value.args[1].fields)
            for b in calls
        ]
        callee = self._launch([b.value.args[0] for b in calls], inputs)
        types = [binding.value.ty_args[0] for binding in calls]
        if len(calls) == 1:
            [only] = calls
            value = self._call(callee, arguments, types[0])
            return [relax.VarBinding(only.var, value), *group.after]
        call = self._call(callee, arguments, types)
        every = relax.DataflowVar(_NAME, call.ty)
        items = [
            relax.VarBinding(binding.var, self.builder.normalize(relax.TupleGetItem(every, n)))
            for n, binding in enumerate(calls)
        ]
        return [relax.VarBinding(every, call), *items, *group.after]

    def _call(
        self, callee: GlobalVar, arguments: Iterable[relax.Expr], types: object
    ) -> relax.Expr:
        call = relax.call_tir(callee, relax.Tuple(list(arguments)), types)
        return self.builder.normalize(call)

    def _launch(self, callees: list[GlobalVar], inputs: list[tuple[int, ...]]) -> GlobalVar:
        """Return the function that computes all calls; equal ones are made once."""
        names = [callee.name_hint for callee in callees]
        key = tuple(names), tuple(inputs)
        if key not in self._launches:
            members = [Member(self._mod[c], i) for c, i in zip(callees, inputs, strict=True)]
            func = one_launch(members)
            var = self.builder.add_func(func, f"{_NAME}{len(self._launches)}_{names[0]}")
            self.builder.update_func(var, func.with_attr("global_symbol", var.name_hint))
            self._launches[key] = var
            self.replaced.update(names)
        return self._launches[key]


def _is_view(binding: relax.Binding) -> bool:
    """Return whether ``binding`` runs no kernel."""
    value = binding.value
    if isinstance(value, relax.Call):
        return operator_name(value) == "reshape"
    return isinstance(value, relax.Tuple | relax.TupleGetItem | relax.Var)


def _writes_inputs(binding: relax.Binding) -> bool:
    """Return whether ``binding`` may overwrite what a delayed call reads."""
    value = binding.value
    return isinstance(value, relax.Call) and "inplace" in operator_name(value)


def _bytes(buffer: tirx.Var) -> int:
    return math.prod(int(extent) for extent in buffer.shape) * int(buffer.dtype.itemsize)
