"""Match a fused PrimFunc to a problem of the Hopper kernels (GEMM or convolution)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir import Expr

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.expressions import (
    ComputeBlock,
    Inliner,
    NotThisForm,
    PaddedLoad,
    compute_blocks,
    is_zero,
    loads,
    number,
)
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.match_conv import convolution, few_channels_convolution
from tvmopt.kernels.cuda.hopper.match_gemm import Roles, regroup
from tvmopt.kernels.cuda.hopper.problem import GemmProblem, KernelSignature
from tvmopt.kernels.tf32 import allows_tf32, why_not_tensor_cores
from tvmopt.kernels.workload import Refusal

# Accumulation dtypes of floating-point reductions.
_ACCUMULATORS = (*dtypes.HALF_FLOATS, "float32")
#: Rows that are assumed for a dynamic dimension when configurations are ranked.
EXPECTED_ROWS = 1024


_ProblemOf: TypeAlias = Callable[
    [ComputeBlock, PaddedLoad, PaddedLoad, str, str], ConvProblem | FewChannelsProblem
]


@dataclasses.dataclass(frozen=True)
class Match:
    """A matched PrimFunc.

    Attributes:
        problem: The problem.
        signature: Role of each parameter.
        name: Global symbol; None for a private PrimFunc.
    """

    problem: GemmProblem | ConvProblem | FewChannelsProblem
    signature: KernelSignature
    name: str | None


def match(func: tirx.PrimFunc) -> Match | Refusal:
    """Return the problem that ``func`` computes, or the reason why there is none.

    Args:
        func: A PrimFunc as LegalizeOps, FuseOps and FuseTIR leave it: a matmul or a convolution of
            two parameters, then elementwise operators. A convolution is in NHWC, padding
            included, with an HWIO or OHWI weight.
    """
    try:
        return _Matcher(func).run()
    except (NotThisForm, _RefusedError) as error:
        return Refusal(str(error))


class _RefusedError(Exception):
    """The pattern matches, but no kernel supports the problem; the message says why."""


class _Matcher:
    """Matches one PrimFunc."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.params = list(func.params)
        if not all(tirx.is_buffer_var(p) for p in self.params):
            raise NotThisForm("a parameter is no tensor")
        if any(len(p.strides) for p in self.params):
            raise NotThisForm("a parameter has strides")
        self.blocks = compute_blocks(func)

    def run(self) -> Match:
        """Return the match."""
        reductions = [b for b in self.blocks if any(b.reduce)]
        if len(reductions) != 1:
            raise NotThisForm(f"{len(reductions)} reductions, not one")
        [self.anchor] = reductions
        self.inline = Inliner(self.blocks, self.anchor.buffer)
        left, right = self._operands(self.anchor)
        self.epilogue, self.out = self._epilogue(self.anchor)
        self.dtype = self._dtype(left, right)
        reasons = []
        # In this order: GEMM; convolution; the packed convolution of :mod:`.few_channels`.
        attempts: list[Callable[[PaddedLoad, PaddedLoad], Match]] = [self._gemm]
        attempts += [
            functools.partial(self._conv, of) for of in (convolution, few_channels_convolution)
        ]
        for attempt in attempts:
            for a, b in ((left, right), (right, left)):
                try:
                    return attempt(a, b)
                except NotThisForm as error:
                    reasons.append(str(error))
        raise NotThisForm(reasons[2] if len(left.load.indices) == 4 else reasons[0])

    # -- operands ----------------------------------------------------------------------------

    def _operands(self, anchor: ComputeBlock) -> list[PaddedLoad]:
        """Return the loads of both factors."""
        value = anchor.value
        while isinstance(value, tirx.Cast):
            value = value.value
        if not isinstance(value, tirx.Mul):
            raise NotThisForm("the reduction does not add up products")
        found = [self._operand(factor) for factor in (value.a, value.b)]
        integer = "int" in str(found[0].load.source.dtype)
        if integer and {str(anchor.buffer.dtype), str(value.ty.dtype)} != {"int32"}:
            raise NotThisForm("integer products or partial sums of fewer than 32 bits")
        if not integer and str(anchor.buffer.dtype) not in _ACCUMULATORS:
            raise NotThisForm(f"partial sums of {anchor.buffer.dtype}")
        return found

    def _operand(self, factor: Expr) -> PaddedLoad:
        """Return the load of a factor."""
        casts: list[str] = []

        def bare(expr: Expr) -> Expr:
            while isinstance(expr, tirx.Cast):
                casts.append(str(expr.ty.dtype))
                expr = expr.value
            return expr

        factor = bare(self.inline(factor))
        condition = None
        if isinstance(factor, ir.Call) and str(getattr(factor.op, "name", "")).endswith(
            "if_then_else"
        ):
            condition, factor, other = factor.args
            if not is_zero(other):
                raise NotThisForm("nonzero padding")
            factor = bare(factor)
        if not isinstance(factor, ir.TensorLoad) or self._index(factor.source) is None:
            raise NotThisForm("a factor that is computed, not loaded")
        dtype = str(factor.source.dtype)
        if any(cast not in (dtype, *dtypes.dtype(dtype).exact_in) for cast in casts):
            raise NotThisForm(f"a factor of {dtype} with a lossy cast")
        return PaddedLoad(factor, condition)

    def _index(self, buffer: tirx.Buffer) -> int | None:
        for i, param in enumerate(self.params):
            if param.same_as(buffer):
                return i
        return None

    def _dtype(self, left: PaddedLoad, right: PaddedLoad) -> str:
        names = {str(left.load.source.dtype), str(right.load.source.dtype)}
        if len(names) > 1:
            raise NotThisForm(f"factors of different dtypes: {', '.join(sorted(names))}")
        [name] = names
        return name

    # -- epilogue ----------------------------------------------------------------------------

    def _epilogue(self, anchor: ComputeBlock) -> tuple[Epilogue, tirx.Buffer]:
        """Return the epilogue (stored value of accumulator and output axes) and the output."""
        written = [b for b in self.blocks if self._index(b.buffer) is not None]
        if len(written) != 1:
            raise NotThisForm(f"{len(written)} outputs, not one")
        [last] = written
        axes = []
        for index, extent in zip(last.indices, last.buffer.shape, strict=True):
            if isinstance(index, tirx.Var):
                axes.append(index)
            elif number(extent) == 1:
                axes.append(tirx.Var("unit", "int32"))
            else:
                raise NotThisForm("the output is not written in order")
        dtype = str(anchor.buffer.dtype)
        accumulator = dtypes.dtype(dtype).accumulator
        acc = tirx.Var("acc", accumulator)
        value = acc if dtype == accumulator else tirx.Cast(dtype, acc)
        if last is anchor:
            return Epilogue(acc, tuple(axes), value), last.buffer
        expr = self.inline(last.value)
        analyzer = sym.Analyzer()
        inputs: list[tirx.Buffer] = []
        for load in loads(expr):
            if load.source.same_as(anchor.buffer):
                if len(load.indices) != len(axes):
                    raise NotThisForm("the result is permuted before the store")
                for index, axis, extent, stored in zip(
                    load.indices, axes, anchor.buffer.shape, last.buffer.shape, strict=True
                ):
                    if number(extent) == 1 and number(stored) != 1:
                        raise NotThisForm("the result is broadcast before the store")
                    if number(extent) != 1 and not analyzer.can_prove_equal(index, axis):
                        raise NotThisForm("the result is permuted before the store")
            elif self._index(load.source) is None or load.source.same_as(last.buffer):
                raise NotThisForm("the epilogue reads an intermediate buffer")
            elif not any(load.source.same_as(i) for i in inputs):
                inputs.append(load.source)
        expr = _replace_loads(expr, anchor.buffer, value)
        return Epilogue(acc, tuple(axes), expr, tuple(inputs)), last.buffer

    def _signature(
        self, left: PaddedLoad, right: PaddedLoad, rows: Expr | None = None
    ) -> KernelSignature:
        """Return the signature, with the parameters' indices by role."""
        buffers = (left.load.source, right.load.source, self.out, *self.epilogue.inputs)
        indices = [self._index(buffer) for buffer in buffers]
        a, b, out, *inputs = [i for i in indices if i is not None]
        return KernelSignature(tuple(self.params), a, b, out, tuple(inputs), rows)

    def _name(self) -> str | None:
        attrs = self.func.attrs or {}
        return str(attrs["global_symbol"]) if "global_symbol" in attrs else None

    # -- GEMM --------------------------------------------------------------------------------

    def _gemm(self, left: PaddedLoad, right: PaddedLoad) -> Match:
        """Match a GEMM with ``left`` as A."""
        if left.condition is not None or right.condition is not None:
            raise NotThisForm("a padded operand")
        roles = Roles(self.anchor, left.load, right.load)
        rows: Expr | int = 1
        for extent in roles.rows:
            rows = rows * extent
        dynamic = not isinstance(rows, int)
        problem = GemmProblem(
            m=EXPECTED_ROWS if dynamic else rows,
            n=roles.columns,
            k=roles.depth,
            dtype=self.dtype,
            out=str(self.out.dtype),
            batch=math.prod(roles.batch),
            trans_a=roles.trans_a,
            trans_b=roles.trans_b,
            batch_a=roles.batch_a,
            batch_b=roles.batch_b,
            dynamic=dynamic,
            split_float32=why_not_tensor_cores(self.dtype, allows_tf32(self.func)) is not None,
        )
        if reason := problem.refusal:
            raise _RefusedError(reason.reason)
        groups = (roles.batch, roles.rows, [roles.columns])
        adapted = regroup(
            self.epilogue, groups if problem.batch > 1 else groups[1:], self.out.shape
        )
        problem = dataclasses.replace(problem, epilogue=adapted)
        signature = self._signature(left, right, rows if dynamic else None)
        return Match(problem, signature, self._name())

    # -- convolutions ------------------------------------------------------------------------

    def _conv(self, problem_of: _ProblemOf, left: PaddedLoad, right: PaddedLoad) -> Match:
        """Match a convolution of ``left`` with the weight ``right``, by ``problem_of``."""
        problem = problem_of(self.anchor, left, right, self.dtype, str(self.out.dtype))
        if reason := why_not_tensor_cores(self.dtype, allows_tf32(self.func)):
            raise _RefusedError(reason.reason)
        if reason := problem.refusal:
            raise _RefusedError(reason.reason)
        problem = dataclasses.replace(problem, epilogue=self.epilogue)
        return Match(problem, self._signature(left, right), self._name())


def _replace_loads(expr: Expr, buffer: tirx.Buffer, value: Expr) -> Expr:
    return tvm_ffi.structural_map(
        expr,
        (ir.TensorLoad, lambda load: value if load.source.same_as(buffer) else load),
        order="post",
    )
