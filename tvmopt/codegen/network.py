"""Analyse a network of static shapes: kernel calls in order, and the tensors they share.

before -> after::

    main(x):                                inputs  0: x
      y = alloc_tensor((1, 8))              buffers 0: y, 1: z
      matmul(x, const, y)                   steps   matmul(NetworkInput(0), Weight(0), Buffer(0))
      v = reshape(y, (8,))                          relu(Buffer(0), Buffer(1))
      z = alloc_tensor((8,))                outputs Buffer(1)
      relu(v, z)
      return z
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GenericConst, GlobalVar

from tvmopt.codegen.weights import Weights
from tvmopt.runtime.segments import FUNCTION
from tvmopt.transform.called_name import called_name


@dataclasses.dataclass(frozen=True)
class NetworkInput:
    """An input of the network, by position."""

    position: int


@dataclasses.dataclass(frozen=True)
class Weight:
    """A constant, by its offset in bytes from the first one."""

    offset: int


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A tensor that kernels write, by number."""

    number: int


Tensor: TypeAlias = NetworkInput | Weight | Buffer
Value: TypeAlias = Tensor | tuple["Value", ...]


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """A call of a kernel.

    Attributes:
        kernel: Name of its function.
        arguments: Its inputs, then its outputs.
    """

    kernel: str
    arguments: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class SegmentCall:
    """A segment that ONNX Runtime runs.

    Attributes:
        model: Its ONNX model.
        model_bytes: Size of the model.
        arguments: Its inputs, then its outputs.
        types: Type of each argument.
    """

    model: Weight
    model_bytes: int
    arguments: tuple[Tensor, ...]
    types: tuple[relax.TensorType, ...]


@dataclasses.dataclass(frozen=True)
class TensorCopy:
    """A copy of a whole tensor."""

    source: Tensor
    target: Buffer


@dataclasses.dataclass(frozen=True)
class Branch:
    """An If: the steps of one of two branches, chosen by a tensor of one bool."""

    condition: Tensor
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


Step: TypeAlias = KernelCall | SegmentCall | TensorCopy | Branch


@dataclasses.dataclass(frozen=True)
class StaticNetwork:
    """A network whose shapes are all known.

    Attributes:
        inputs: Type of each input.
        outputs: Type of each output.
        results: The tensor of each output; each is a buffer, and no two are the same one.
        buffers: Size of each buffer in bytes.
        steps: What the network does, in order.
    """

    inputs: tuple[relax.TensorType, ...]
    outputs: tuple[relax.TensorType, ...]
    results: tuple[Buffer, ...]
    buffers: tuple[int, ...]
    steps: tuple[Step, ...]

    def kernels(self) -> dict[str, int]:
        """Return the number of arguments of each kernel that the network calls, by name."""
        calls = [step for step in flat(self.steps) if isinstance(step, KernelCall)]
        return {call.kernel: len(call.arguments) for call in calls}

    def segments(self) -> list[SegmentCall]:
        """Return the calls of segments, in order."""
        return [step for step in flat(self.steps) if isinstance(step, SegmentCall)]


class NotStaticError(Exception):
    """The network needs TVM's virtual machine; the text says why."""


def flat(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield all steps in order; a branch comes before the steps in it."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from flat((*step.then, *step.otherwise))


def tensors(step: Step) -> tuple[Tensor, ...]:
    """Return the tensors that a step uses; steps inside a branch are left out."""
    if isinstance(step, KernelCall | SegmentCall):
        return step.arguments
    return (step.source, step.target) if isinstance(step, TensorCopy) else (step.condition,)


def analyse_network(mod: tvm.IRModule, name: str, weights: Weights) -> StaticNetwork:
    """Return the steps of a Relax function.

    Args:
        mod: Module after ``relax.transform.CallTIRRewrite``.
        name: Name of the function.
        weights: Gets the constants.

    Raises:
        NotStaticError: When a shape is not constant, or the function does more than call kernels.
    """
    main = mod[name]
    analysis = _Analysis(mod, weights)
    for position, var in enumerate(main.params):
        if not isinstance(var.ty, relax.TensorType):
            raise NotStaticError(f"input {var.name} is not a tensor")
        _bytes(var.ty)
        analysis.values[var] = NetworkInput(position)
    steps: list[Step] = []
    returned = analysis.run(main.body, steps)
    types = main.ret_ty.fields if isinstance(main.ret_ty, tvm.ir.TupleType) else [main.ret_ty]
    values = returned if isinstance(returned, tuple) else (returned,)
    results: list[Buffer] = []
    for value, ty in zip(values, types, strict=True):
        if not isinstance(ty, relax.TensorType) or isinstance(value, tuple):
            raise NotStaticError("an output is not a tensor")
        if not isinstance(value, Buffer) or value in results:
            value = analysis.copied(value, ty, steps)
        results.append(value)
    inputs = tuple(var.ty for var in main.params)
    return StaticNetwork(
        inputs, tuple(types), tuple(results), tuple(analysis.buffers), tuple(steps)
    )


class _Analysis:
    """Values of the variables so far; ``run`` adds the variables of a body."""

    def __init__(self, mod: tvm.IRModule, weights: Weights) -> None:
        self._mod, self._weights = mod, weights
        self.values: dict[relax.Var, Value] = {}
        self.buffers: list[int] = []

    def run(self, body: relax.Expr, steps: list[Step]) -> Value:
        """Append the steps of ``body`` to ``steps``; return its value."""
        if not isinstance(body, relax.SeqExpr):
            return self._value(body)
        for block in body.blocks:
            for binding in block.bindings:
                if not isinstance(binding, relax.VarBinding):
                    raise NotStaticError(f"{binding.var.name} is bound to a shape, not to a value")
                self.values[binding.var] = self._bound(binding, steps)
        return self._value(body.body)

    def copied(self, value: Tensor, ty: relax.TensorType, steps: list[Step]) -> Buffer:
        """Append a copy of ``value`` to ``steps``; return the copy."""
        target = self._buffer(ty)
        steps.append(TensorCopy(value, target))
        return target

    def _bound(self, binding: relax.VarBinding, steps: list[Step]) -> Value:
        value = binding.value
        if isinstance(value, relax.If):
            return self._branch(value, binding.var.ty, steps)
        if not isinstance(value, relax.Call):
            return self._value(value)
        if isinstance(value.op, GlobalVar):
            return self._called(value, steps)
        if isinstance(value.op, relax.ExternFunc) and called_name(value) == FUNCTION:
            return self._segment(value, steps)
        name = getattr(value.op, "name", "")
        if name == "relax.builtin.alloc_tensor":
            return self._buffer(binding.var.ty)
        if name == "relax.reshape":
            _bytes(binding.var.ty)
            return self._value(value.args[0])
        raise NotStaticError(f"{name or value.op} is not a kernel")

    def _called(self, call: relax.Call, steps: list[Step]) -> Value:
        name = call.op.name_hint
        function = self._mod[name]
        if not isinstance(function, tirx.PrimFunc):
            raise NotStaticError(f"{name} is not a kernel")
        if _calls_runtime(function):
            raise NotStaticError(f"{name} calls a function of TVM's runtime")
        steps.append(KernelCall(name, self._tensors(name, call.args)))
        return ()

    def _segment(self, call: relax.Call, steps: list[Step]) -> Value:
        model, *others = call.args
        [content] = self._tensors(FUNCTION, [model])
        assert isinstance(content, Weight)
        arguments, types = self._tensors(FUNCTION, others), tuple(each.ty for each in others)
        steps.append(SegmentCall(content, _bytes(model.ty), arguments, types))
        return ()

    def _tensors(self, name: str, arguments: Sequence[relax.Expr]) -> tuple[Tensor, ...]:
        """Return the tensors that a call of ``name`` takes."""
        values = [self._value(argument) for argument in arguments]
        if any(isinstance(value, tuple) for value in values):
            raise NotStaticError(f"{name} takes a tuple")
        return tuple(values)  # type: ignore[arg-type]

    def _branch(self, value: relax.If, ty: tvm.ir.Type, steps: list[Step]) -> Value:
        condition = self._value(value.cond)
        if isinstance(condition, tuple):
            raise NotStaticError("a condition is not a tensor")
        branches: list[list[Step]] = [[], []]
        then = self.run(value.true_branch, branches[0])
        otherwise = self.run(value.false_branch, branches[1])
        result = self._merged(ty, then, otherwise, branches)
        steps.append(Branch(condition, tuple(branches[0]), tuple(branches[1])))
        return result

    def _merged(
        self, ty: tvm.ir.Type, then: Value, otherwise: Value, branches: list[list[Step]]
    ) -> Value:
        """Return the value of an If: buffers that get a copy of either branch's value."""
        if isinstance(then, tuple) or isinstance(otherwise, tuple):
            if not isinstance(then, tuple) or not isinstance(otherwise, tuple):
                raise NotStaticError("an If returns a tuple in one branch only")
            fields = zip(ty.fields, then, otherwise, strict=True)
            return tuple(self._merged(field, a, b, branches) for field, a, b in fields)
        if not isinstance(ty, relax.TensorType):
            raise NotStaticError("an If returns what is not a tensor")
        target = self.copied(then, ty, branches[0])
        branches[1].append(TensorCopy(otherwise, target))
        return target

    def _value(self, expr: relax.Expr) -> Value:
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, GenericConst):
            return Weight(self._weights.add(expr.value))
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            value = self._value(expr.tuple_value)
            assert isinstance(value, tuple)
            return value[int(expr.index)]
        raise NotStaticError(f"{type(expr).__name__} is not a tensor")

    def _buffer(self, ty: relax.TensorType) -> Buffer:
        self.buffers.append(_bytes(ty))
        return Buffer(len(self.buffers) - 1)


def _calls_runtime(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel calls a packed function, such as TVM's sort."""
    found: list[str] = []

    def visit(call: tvm.ir.Call) -> None:
        name = getattr(call.op, "name", "")
        if "call_packed" in name or "call_cpacked" in name:
            found.append(name)

    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, visit))
    return bool(found)


def _bytes(ty: relax.TensorType) -> int:
    shape = getattr(ty.shape, "values", None)
    if shape is None or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        raise NotStaticError("a shape is known at run time only")
    bits = tvm.DataType(str(ty.dtype)).bits
    return math.prod(int(extent) for extent in shape) * -(-bits // 8)
