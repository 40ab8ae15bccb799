"""Multi-output fusion: a kernel also stores what an elementwise kernel makes of its output.

before -> after, of a residual block in int8::

    y = conv2d_add_relu(x, w, residual)        # float32, the residual of the next block
    q = quantize(y)                            # uint8, the input of the next convolution
    ->
    y, q = conv2d_add_relu_also_quantize(x, w, residual)

FuseOps fuses an elementwise operator with its producer only if no other operator reads the
producer's output. The pass runs on scheduled functions
(:mod:`tvmopt.kernels.cpu.common.second_output`), so that tuning sees each function alone. XLA has
the same fusion for GPUs (its multi-output fusion).
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvmopt.kernels.call_tir import takes_tensors_only
from tvmopt.kernels.cpu.common.second_output import (
    ElementFunction,
    element_function,
    with_second_output,
)

#: Stands between the names of the two kernels in the name of the fused one.
ALSO = "_also_"


@tvm.transform.module_pass(opt_level=0, name="MultiOutputFusion")
class MultiOutputFusion:
    """Fuse elementwise kernels with their producers; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of a scheduled module."""
        rewrite = _OutputFusion(mod)
        entries = {v: f for v, f in mod.functions_items() if isinstance(f, relax.Function)}
        for var, func in entries.items():
            rewrite.builder.update_func(var, rewrite.function(func))
        if not rewrite.fused:
            return mod
        names = sorted(var.name_hint for var in entries)
        return relax.transform.DeadCodeElimination(names)(rewrite.builder.get())


class _OutputFusion:
    """Rewrites Relax functions.

    Attributes:
        builder: Builder of the new module.
        fused: The fused function of each producer and consumer.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.builder = relax.BlockBuilder(mod)
        self.fused: dict[tuple[GlobalVar, GlobalVar], GlobalVar] = {}
        self._mod = mod
        self._elementwise: dict[GlobalVar, ElementFunction | None] = {}

    def function(self, func: relax.Function) -> relax.Function:
        """Return ``func`` with the calls of its blocks fused."""
        if not isinstance(func.body, relax.SeqExpr):
            return func
        blocks = [
            relax.DataflowBlock(self._bindings(list(block.bindings)))
            if isinstance(block, relax.DataflowBlock)
            else block
            for block in func.body.blocks
        ]
        body = relax.SeqExpr(blocks, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _bindings(self, bindings: list[relax.Binding]) -> list[relax.Binding]:
        fused = self._pairs(bindings)
        second = {consumer.var for consumer, _ in fused.values()}
        out: list[relax.Binding] = []
        for binding in bindings:
            if binding.var in fused:
                out += self._call(binding, *fused[binding.var])
            elif binding.var not in second:
                out.append(binding)
        return out

    def _pairs(
        self, bindings: list[relax.Binding]
    ) -> dict[relax.Var, tuple[relax.VarBinding, GlobalVar]]:
        """Return the consumer and the fused function of each producer, by its variable."""
        producers: dict[relax.Expr, relax.VarBinding] = {}
        found: dict[relax.Var, tuple[relax.VarBinding, GlobalVar]] = {}
        for binding in bindings:
            call = binding.value
            if not takes_tensors_only(call) or not isinstance(call.ty, relax.TensorType):
                continue
            arguments = call.args[1].fields
            producer = producers.get(arguments[0]) if len(arguments) == 1 else None
            if producer is not None and producer.var not in found:
                function = self._fused(producer.value.args[0], call.args[0])
                if function is not None:
                    found[producer.var] = binding, function
                    continue  # its call is gone, so that nothing fuses with it
            producers[binding.var] = binding
        return found

    def _call(
        self, producer: relax.VarBinding, consumer: relax.VarBinding, function: GlobalVar
    ) -> list[relax.Binding]:
        """Return the bindings of the fused call and its two results."""
        calls = producer.value, consumer.value
        types = [call.ty_args[0] for call in calls]
        call = self.builder.normalize(relax.call_tir(function, calls[0].args[1], types))
        both = relax.DataflowVar("both", call.ty)
        return [
            relax.VarBinding(both, call),
            *(
                relax.VarBinding(var, self.builder.normalize(relax.TupleGetItem(both, n)))
                for n, var in enumerate((producer.var, consumer.var))
            ),
        ]

    def _fused(self, producer: GlobalVar, consumer: GlobalVar) -> GlobalVar | None:
        """Return the function that computes both; equal ones are made once."""
        key = producer, consumer
        if key not in self.fused:
            second = self._elementwise_of(consumer)
            func = self._mod[producer]
            if second is None or not isinstance(func, tirx.PrimFunc):
                return None
            made = with_second_output(func, second)
            if made is None:
                return None
            name = f"{producer.name_hint}{ALSO}{consumer.name_hint}"
            self.fused[key] = self.builder.add_func(made, name)
        return self.fused[key]

    def _elementwise_of(self, consumer: GlobalVar) -> ElementFunction | None:
        if consumer not in self._elementwise:
            func = self._mod[consumer]
            is_tensor_ir = isinstance(func, tirx.PrimFunc)
            self._elementwise[consumer] = element_function(func) if is_tensor_ir else None
        return self._elementwise[consumer]
