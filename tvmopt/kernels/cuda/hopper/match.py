"""Match a fused PrimFunc to a problem of the Hopper kernels (GEMM or convolution)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.expressions import (
    Inliner,
    NotThisForm,
    Stage,
    is_zero,
    loads,
    number,
    stages,
)
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.match_conv import convolution, line_problem_of
from tvmopt.kernels.cuda.hopper.match_gemm import Roles, regroup
from tvmopt.kernels.cuda.hopper.problem import GemmProblem, KernelSignature
from tvmopt.kernels.workload import Refusal

# Accumulation dtypes of floating-point reductions.
_SUMS = (*dtypes.HALF_FLOATS, "float32")
#: Rows that are assumed for a dynamic dimension when configurations are ranked.
EXPECTED_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Match:
    """A matched PrimFunc.

    Attributes:
        problem: The problem.
        signature: Role of each parameter.
        name: Global symbol; None for a private PrimFunc.
    """

    problem: GemmProblem | ConvProblem | LineProblem
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
            raise NotThisForm("a parameter that is no tensor")
        if any(len(p.strides) for p in self.params):
            raise NotThisForm("a parameter with strides of its own")
        self.stages = stages(func)

    def run(self) -> Match:
        """Return the match."""
        sums = [s for s in self.stages if any(s.reduce)]
        if len(sums) != 1:
            raise NotThisForm(f"{len(sums)} sums in place of one")
        [anchor] = sums
        self.inline = Inliner(self.stages, anchor.buffer)
        left, right = self._operands(anchor)
        epilogue, out = self._epilogue(anchor)
        dtype = self._dtype(left, right)
        reasons = []
        # In this order: GEMM; convolution; the packed convolution of :mod:`.few_channels`.
        attempts: list[Callable[..., Match]] = [self._gemm]
        attempts += [functools.partial(self._pixels, of) for of in (convolution, line_problem_of)]
        for attempt in attempts:
            for a, b in ((left, right), (right, left)):
                try:
                    return attempt(anchor, a, b, epilogue, dtype, out)
                except NotThisForm as error:
                    reasons.append(str(error))
        raise NotThisForm(reasons[2] if len(left[0].indices) == 4 else reasons[0])

    # -- operands ----------------------------------------------------------------------------

    def _operands(self, anchor: Stage) -> list[tuple[Any, Any]]:
        """Return for both factors the load and the condition of its padding (or None)."""
        value = anchor.value
        while isinstance(value, tirx.Cast):
            value = value.value
        if not isinstance(value, tirx.Mul):
            raise NotThisForm("the sum is not one of products")
        found = [self._operand(factor) for factor in (value.a, value.b)]
        integer = "int" in str(found[0][0].source.dtype)
        if integer and {str(anchor.buffer.dtype), str(value.ty.dtype)} != {"int32"}:
            raise NotThisForm("products or sums of integers in fewer than 32 bits")
        if not integer and str(anchor.buffer.dtype) not in _SUMS:
            raise NotThisForm(f"sums in {anchor.buffer.dtype}")
        return found

    def _operand(self, factor: Any) -> tuple[Any, Any]:
        """Return the load of a factor, and the condition of its zero padding (or None)."""
        casts: list[str] = []

        def bare(expr: Any) -> Any:
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
                raise NotThisForm("padding that is not zero")
            factor = bare(factor)
        if not isinstance(factor, ir.TensorLoad) or self._index(factor.source) is None:
            raise NotThisForm("a factor that is computed on the way")
        dtype = str(factor.source.dtype)
        if any(cast not in (dtype, *dtypes.dtype(dtype).exact_in) for cast in casts):
            raise NotThisForm(f"a factor of {dtype} that is not read as it is")
        return factor, condition

    def _index(self, buffer: Any) -> int | None:
        for i, param in enumerate(self.params):
            if param.same_as(buffer):
                return i
        return None

    def _dtype(self, left: Any, right: Any) -> str:
        names = {str(left[0].source.dtype), str(right[0].source.dtype)}
        if len(names) > 1:
            raise NotThisForm(f"factors of different types: {', '.join(sorted(names))}")
        [name] = names
        return name

    # -- epilogue ----------------------------------------------------------------------------

    def _epilogue(self, anchor: Stage) -> tuple[Epilogue, Any]:
        """Return the epilogue (stored value of accumulator and output axes) and the output."""
        written = [s for s in self.stages if self._index(s.buffer) is not None]
        if len(written) != 1:
            raise NotThisForm(f"{len(written)} outputs in place of one")
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
        inputs: list[Any] = []
        for load in loads(expr):
            if load.source.same_as(anchor.buffer):
                if len(load.indices) != len(axes):
                    raise NotThisForm("the result is rearranged before it is stored")
                for index, axis, extent, stored in zip(
                    load.indices, axes, anchor.buffer.shape, last.buffer.shape, strict=True
                ):
                    if number(extent) == 1 and number(stored) != 1:
                        raise NotThisForm("a sum serves many elements of what is stored")
                    if number(extent) != 1 and not analyzer.can_prove_equal(index, axis):
                        raise NotThisForm("the result is rearranged before it is stored")
            elif self._index(load.source) is None or load.source.same_as(last.buffer):
                raise NotThisForm("what follows reads something else than parameters")
            elif not any(load.source.same_as(i) for i in inputs):
                inputs.append(load.source)
        expr = _replace_loads(expr, anchor.buffer, value)
        return Epilogue(acc, tuple(axes), expr, tuple(inputs)), last.buffer

    def _signature(
        self, a: Any, b: Any, out: Any, epilogue: Epilogue, rows: Any
    ) -> KernelSignature:
        """Return the signature, with the parameters' indices by role."""

        def place(buffer: Any) -> int:
            index = self._index(buffer)
            assert index is not None
            return index

        return KernelSignature(
            tuple(self.params),
            place(a),
            place(b),
            place(out),
            tuple(place(i) for i in epilogue.inputs),
            rows,
        )

    def _name(self) -> str | None:
        attrs = self.func.attrs or {}
        return str(attrs["global_symbol"]) if "global_symbol" in attrs else None

    # -- GEMM --------------------------------------------------------------------------------

    def _gemm(
        self, anchor: Stage, left: Any, right: Any, epilogue: Epilogue, dtype: str, out: Any
    ) -> Match:
        """Match a GEMM with ``left`` as A."""
        if left[1] is not None or right[1] is not None:
            raise NotThisForm("an operand that is padded")
        roles = Roles(anchor, left[0], right[0])
        rows: Any = 1
        for extent in roles.rows:
            rows = rows * extent
        dynamic = not isinstance(rows, int)
        problem = GemmProblem(
            m=EXPECTED_ROWS if dynamic else rows,
            n=roles.columns,
            k=roles.depth,
            dtype=dtype,
            out=str(out.dtype),
            batch=math.prod(roles.batch),
            trans_a=roles.trans_a,
            trans_b=roles.trans_b,
            batch_a=roles.batch_a,
            batch_b=roles.batch_b,
            dynamic=dynamic,
        )
        if reason := problem.refusal:
            raise _RefusedError(reason.reason)
        groups = (roles.batch, roles.rows, [roles.columns])
        adapted = regroup(epilogue, groups if problem.batch > 1 else groups[1:], out.shape)
        problem = dataclasses.replace(problem, epilogue=adapted)
        signature = self._signature(
            left[0].source, right[0].source, out, epilogue, rows if dynamic else None
        )
        return Match(problem, signature, self._name())

    # -- convolutions ------------------------------------------------------------------------

    def _pixels(
        self,
        problem_of: Callable[[Stage, Any, Any, str, str], ConvProblem | LineProblem],
        anchor: Stage, left: Any, right: Any, epilogue: Epilogue, dtype: str, out: Any,
    ) -> Match:  # fmt: skip
        """Match a convolution of ``left`` with the weight ``right``, by ``problem_of``."""
        problem = problem_of(anchor, left, right, dtype, str(out.dtype))
        if reason := problem.refusal:
            raise _RefusedError(reason.reason)
        signature = self._signature(left[0].source, right[0].source, out, epilogue, None)
        return Match(dataclasses.replace(problem, epilogue=epilogue), signature, self._name())


def _replace_loads(expr: Any, buffer: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(
        expr,
        (ir.TensorLoad, lambda load: value if load.source.same_as(buffer) else load),
        order="post",
    )
