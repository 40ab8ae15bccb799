"""Which fused functions the Hopper kernels can take the place of, and as what problem."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from .conv import ConvProblem
from .epilogue import Epilogue
from .expressions import (
    Inliner,
    NotThisForm,
    Stage,
    is_zero,
    linear,
    loads,
    number,
    replace,
    stages,
)
from .lines import LineProblem
from .problem import GemmProblem, Signature

#: Rows that a dynamic dimension is taken to have when kernels are chosen.
EXPECTED_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Match:
    """A function in terms of these kernels.

    Attributes:
        problem: What it computes.
        signature: Which of its parameters is what.
        name: Its global symbol; None of a private function.
    """

    problem: GemmProblem | ConvProblem | LineProblem
    signature: Signature
    name: str | None


def match(func: tirx.PrimFunc) -> Match | str:
    """The problem that ``func`` is, or why it is none.

    Args:
        func: A function as LegalizeOps, FuseOps and FuseTIR leave it: a sum of products of two
            parameters (a matrix product, or a convolution in NHWC whose weight is HWIO or OHWI,
            its padding included), and what follows elementwise.
    """
    try:
        return _Matcher(func).run()
    except (NotThisForm, _RefusedError) as error:
        return str(error)


class _RefusedError(Exception):
    """Why there is no kernel for a function of a form that is known."""


class _Matcher:
    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self.params = list(func.params)
        if not all(tirx.is_buffer_var(p) for p in self.params):
            raise NotThisForm("a parameter that is no tensor")
        self.stages = stages(func)

    def run(self) -> Match:
        sums = [s for s in self.stages if any(s.reduce)]
        if len(sums) != 1:
            raise NotThisForm(f"{len(sums)} sums in place of one")
        [anchor] = sums
        self.inline = Inliner(self.stages, anchor.buffer)
        left, right = self._operands(anchor)
        ending, out = self._ending(anchor)
        dtype = self._dtype(left, right)
        reasons = []
        for attempt in (self._gemm, self._conv, self._lines):
            for a, b in ((left, right), (right, left)):
                try:
                    return attempt(anchor, a, b, ending, dtype, out)
                except NotThisForm as error:
                    reasons.append(str(error))
        raise NotThisForm(reasons[2] if len(left[0].indices) == 4 else reasons[0])

    # -- operands ----------------------------------------------------------------------------

    def _operands(self, anchor: Stage) -> list[tuple[Any, Any]]:
        """Of both factors the load, and the condition of its padding (or None)."""
        value = anchor.value
        wide = str(anchor.buffer.dtype)
        if isinstance(value, tirx.Cast) and str(value.ty.dtype) == wide:
            value = value.value
        if not isinstance(value, tirx.Mul):
            raise NotThisForm("the sum is not one of products")
        found = []
        for factor in (value.a, value.b):
            factor = self.inline(factor)
            while isinstance(factor, tirx.Cast):
                factor = factor.value
            condition = None
            if isinstance(factor, ir.Call) and str(getattr(factor.op, "name", "")).endswith(
                "if_then_else"
            ):
                condition, factor, other = factor.args
                if not is_zero(other):
                    raise NotThisForm("padding that is not zero")
            while isinstance(factor, tirx.Cast):
                factor = factor.value
            if not isinstance(factor, ir.TensorLoad) or self._index(factor.source) is None:
                raise NotThisForm("a factor that is computed on the way")
            found.append((factor, condition))
        return found

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

    # -- what follows ------------------------------------------------------------------------

    def _ending(self, anchor: Stage) -> tuple[Epilogue, Any]:
        """What is stored, in terms of the sum and of the output's axes."""
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
        accumulator = "int32" if "int" in dtype else "float32"
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
                for index, axis, extent in zip(
                    load.indices, axes, anchor.buffer.shape, strict=True
                ):
                    if number(extent) != 1 and not analyzer.can_prove_equal(index, axis):
                        raise NotThisForm("the result is rearranged before it is stored")
            elif self._index(load.source) is None or load.source.same_as(last.buffer):
                raise NotThisForm("what follows reads something else than parameters")
            elif not any(load.source.same_as(i) for i in inputs):
                inputs.append(load.source)
        expr = _replace_loads(expr, anchor.buffer, value)
        return Epilogue(acc, tuple(axes), expr, tuple(inputs)), last.buffer

    def _signature(self, a: Any, b: Any, out: Any, ending: Epilogue, rows: Any) -> Signature:
        def place(buffer: Any) -> int:
            index = self._index(buffer)
            assert index is not None
            return index

        return Signature(
            tuple(self.params),
            place(a),
            place(b),
            place(out),
            tuple(place(i) for i in ending.inputs),
            rows,
        )

    def _name(self) -> str | None:
        attrs = self.func.attrs or {}
        return str(attrs["global_symbol"]) if "global_symbol" in attrs else None

    # -- matrix products ---------------------------------------------------------------------

    def _gemm(
        self, anchor: Stage, left: Any, right: Any, ending: Epilogue, dtype: str, out: Any
    ) -> Match:
        """As a matrix product whose rows ``left`` holds."""
        if left[1] is not None or right[1] is not None:
            raise NotThisForm("an operand that is padded")
        roles = _Roles(anchor, left[0], right[0])
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
        if reason := problem.why_not:
            raise _RefusedError(reason)
        groups = (roles.batch, roles.rows, [roles.columns])
        adapted = _regroup(ending, groups if problem.batch > 1 else groups[1:], out.shape)
        problem = dataclasses.replace(problem, epilogue=adapted)
        signature = self._signature(
            left[0].source, right[0].source, out, ending, rows if dynamic else None
        )
        return Match(problem, signature, self._name())

    # -- convolutions ------------------------------------------------------------------------

    def _conv(
        self, anchor: Stage, left: Any, right: Any, ending: Epilogue, dtype: str, out: Any
    ) -> Match:
        """As a convolution of ``left`` with the weight ``right``."""
        problem = _convolution(anchor, left, right, dtype, str(out.dtype))
        if reason := problem.why_not:
            raise _RefusedError(reason)
        signature = self._signature(left[0].source, right[0].source, out, ending, None)
        return Match(dataclasses.replace(problem, epilogue=ending), signature, self._name())


    # -- lines of pixels ---------------------------------------------------------------------

    def _lines(
        self, anchor: Stage, left: Any, right: Any, ending: Epilogue, dtype: str, out: Any
    ) -> Match:
        """As the lines of few channels that :mod:`.few_channels` makes."""
        problem = _line_problem(anchor, left, right, dtype, str(out.dtype))
        if reason := problem.why_not:
            raise _RefusedError(reason)
        signature = self._signature(left[0].source, right[0].source, out, ending, None)
        return Match(dataclasses.replace(problem, epilogue=ending), signature, self._name())


class _Roles:
    """Which axes of a sum are batch, rows, columns and depth."""

    def __init__(self, anchor: Stage, a: Any, b: Any) -> None:
        depth = [
            (v, e)
            for v, e, r in zip(anchor.axes, anchor.extents, anchor.reduce, strict=True)
            if r and e != 1
        ]
        if len(depth) != 1 or not isinstance(depth[0][1], int):
            raise NotThisForm("not one axis of static depth")
        [(k, self.depth)] = depth
        at_a, at_b = _plain(anchor, a), _plain(anchor, b)
        shape = [
            (v, e) for v, e in zip(anchor.parallel, map(number, anchor.buffer.shape), strict=True)
        ]
        for index, (axis, _) in zip(anchor.indices, shape, strict=True):
            if not (isinstance(index, tirx.Var) and index.same_as(axis)):
                raise NotThisForm("the sum is not written in order")
        axes = [(v, e) for v, e in shape if not _is_one(e)]
        if not axes or not _holds(at_b, axes[-1][0]) or _holds(at_a, axes[-1][0]):
            raise NotThisForm("the last axis is not one of columns")
        columns, size = axes.pop()
        if not isinstance(size, int):
            raise NotThisForm("a dynamic number of columns")
        self.columns = size
        both = [_holds(at_a, v) and _holds(at_b, v) for v, _ in axes]
        only_a = [_holds(at_a, v) and not _holds(at_b, v) for v, _ in axes]
        only_b = [_holds(at_b, v) and not _holds(at_a, v) for v, _ in axes]
        count = sum(both) + sum(only_b)
        if not all(x or y for x, y in zip(both[:count], only_b[:count], strict=True)):
            raise NotThisForm("rows come before the batch")
        if any(only_b) and any(both):
            raise NotThisForm("operands share the batch in part")
        batch, rows = axes[:count], axes[count:]
        if not all(only_a[count:]):
            raise NotThisForm("an axis that neither operand has")
        if not all(isinstance(e, int) for _, e in batch):
            raise NotThisForm("a dynamic batch")
        self.batch = [e for _, e in batch]
        self.rows = [e for _, e in rows]
        self.batch_a, self.batch_b = not any(only_b), True
        names_b = [v for v, _ in batch]
        names_a = names_b if self.batch_a else []
        row_names = [v for v, _ in rows]
        self.trans_a = self._order(at_a, names_a, row_names, k, "A")
        self.trans_b = self._order(at_b, names_b, [k], columns, "B")

    @staticmethod
    def _order(found: list[Any], batch: list[Any], first: list[Any], last: Any, name: str) -> bool:
        """Whether ``first`` and ``last`` have changed places in memory."""
        for swapped, wanted in (
            (False, [*batch, *first, last]),
            (True, [*batch, last, *first]),
        ):
            same = len(found) == len(wanted) and all(
                x.same_as(y) for x, y in zip(found, wanted, strict=True)
            )
            if same and not (swapped and len(first) > 1):
                return swapped
        raise NotThisForm(f"the axes of {name} are in no order that is known")


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def _holds(found: list[Any], axis: Any) -> bool:
    return any(v.same_as(axis) for v in found)


def _plain(anchor: Stage, load: Any) -> list[Any]:
    """The axes that index ``load``, one a dimension; those of extent 1 are left out."""
    found = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        if number(extent) == 1:
            continue
        factors, rest = linear(index, anchor.axes, anchor.extents)
        if rest or len(factors) != 1 or next(iter(factors.values())) != 1:
            raise NotThisForm("an operand that is not indexed by one axis a dimension")
        axis = next(iter(factors))
        whole = anchor.extent(axis)
        if not sym.Analyzer().can_prove_equal(whole, extent):
            raise NotThisForm("an operand that is read in part")
        found.append(axis)
    return found


def _regroup(ending: Epilogue, groups: Any, shape: Any) -> Epilogue:
    """The epilogue with one axis for each group of the output's axes.

    Args:
        ending: The epilogue.
        groups: Extents of the axes of each group; those of extent 1 belong to none.
        shape: Shape of the output.
    """
    names = [tirx.Var(f"v{i}", "int32") for i in range(len(groups))]
    zero = tirx.IntImm("int32", 0)
    values: dict[Any, Any] = {}
    wide = []
    for axis, extent in zip(ending.axes, shape, strict=True):
        if number(extent) == 1:
            values[axis] = zero
        else:
            wide.append(axis)
    for name, group in zip(names, groups, strict=True):
        mine, wide = wide[: len(group)], wide[len(group) :]
        rest: Any = name
        for axis, extent in reversed(list(zip(mine[1:], group[1:], strict=True))):
            extent = tirx.Cast("int32", extent) if not isinstance(extent, int) else extent
            values[axis] = tirx.truncmod(rest, extent)
            rest = tirx.truncdiv(rest, extent)
        if mine:
            values[mine[0]] = rest
    return dataclasses.replace(
        ending, axes=tuple(names), expr=replace(ending.expr, _typed(values))
    )


def _typed(values: dict[Any, Any]) -> dict[Any, Any]:
    result = {}
    for axis, value in values.items():
        dtype = str(axis.ty.dtype)
        result[axis] = value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)
    return result


def _replace_loads(expr: Any, buffer: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(
        expr,
        (ir.TensorLoad, lambda load: value if load.source.same_as(buffer) else load),
        order="post",
    )


def _convolution(anchor: Stage, left: Any, right: Any, dtype: str, out: str) -> ConvProblem:
    (x, condition), (weight, masked) = left, right
    if masked is not None:
        raise NotThisForm("a padded weight")
    if len(x.source.shape) != 4 or len(weight.source.shape) != 4 or len(anchor.indices) != 4:
        raise NotThisForm("neither a matrix product nor a convolution of images")
    sizes = [number(e) for e in (*x.source.shape, *weight.source.shape, *anchor.buffer.shape)]
    if not all(isinstance(e, int) for e in sizes):
        raise NotThisForm("a convolution of dynamic size")
    images, height, width, channels = sizes[:4]
    parallel = anchor.parallel
    if len(parallel) != 4 or not all(
        isinstance(i, tirx.Var) and i.same_as(v)
        for i, v in zip(anchor.indices, parallel, strict=True)
    ):
        raise NotThisForm("the sum is not written in order")
    n, y, w, f = parallel
    out_n, out_h, out_w, filters = sizes[8:]
    places = [linear(i, anchor.axes, anchor.extents) for i in x.indices]
    reduced = {v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r}

    def plain(place: Any, axis: Any, extent: int) -> bool:
        factors, rest = place
        if rest:
            return False
        return factors == {} if extent == 1 else list(factors.items()) == [(axis, 1)]

    if not plain(places[0], n, out_n) or images != out_n:
        raise NotThisForm("the images of a convolution are not in order")
    window = []
    for (factors, rest), axis in zip(places[1:3], (y, w), strict=True):
        inner = [v for v in factors if v in reduced]
        if len(inner) > 1 or any(v not in reduced and not v.same_as(axis) for v in factors):
            raise NotThisForm("the window of a convolution is of no form that is known")
        window.append((factors.get(axis, 1), inner[0] if inner else None, rest, factors))
    (sh, ry, top, fh), (sw, rx, left_side, fw) = window
    kh = anchor.extent(ry) if ry is not None else 1
    kw = anchor.extent(rx) if rx is not None else 1
    dh = fh[ry] if ry is not None else 1
    dw = fw[rx] if rx is not None else 1
    deep = list(places[3][0])
    alone = len(deep) == 1 and deep[0] in reduced and places[3] == ({deep[0]: 1}, 0)
    if channels > 1 and not alone:
        raise NotThisForm("the channels of a convolution are in groups")
    rc = deep[0] if deep else None
    others = {v for v, e in zip(anchor.axes, anchor.extents, strict=True) if v in reduced and e > 1}
    if others - {v for v in (ry, rx, rc) if v is not None}:
        raise NotThisForm("a sum over more than a window and channels")
    at_weight = [linear(i, anchor.axes, anchor.extents) for i in weight.indices]
    shape = sizes[4:8]
    layout = None
    for name in ("OHWI", "HWIO"):
        axes = {"O": (f, filters), "H": (ry, kh), "W": (rx, kw), "I": (rc, channels)}
        if all(
            size == axes[letter][1] and plain(place, *axes[letter])
            for letter, size, place in zip(name, shape, at_weight, strict=True)
        ):
            layout = name
            break
    if layout is None:
        raise NotThisForm("the weight is neither OHWI nor HWIO")
    if min(sh, sw, dh, dw) < 1:
        raise NotThisForm("a window that moves backwards")
    if condition is not None:
        _check_padding(condition, x)
    top, left_side = -top, -left_side
    bottom = (out_h - 1) * sh + (kh - 1) * dh + 1 - height - top
    right_side = (out_w - 1) * sw + (kw - 1) * dw + 1 - width - left_side
    return ConvProblem(
        images, height, width, channels, filters, (kh, kw), (sh, sw),
        (top, left_side, bottom, right_side), (dh, dw), dtype, out, layout,
    )  # fmt: skip


def _line_problem(anchor: Stage, left: Any, right: Any, dtype: str, out: str) -> LineProblem:
    (x, condition), (weight, masked) = left, right
    reduced = [v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r]
    parallel = anchor.parallel
    if condition is not None or masked is not None:
        raise NotThisForm("an operand that is padded")
    if len(x.indices) != 3 or len(weight.indices) != 4 or len(parallel) != 4 or len(reduced) != 3:
        raise NotThisForm("not the lines of an image")
    sizes = [number(e) for e in (*x.source.shape, *weight.source.shape, *anchor.buffer.shape)]
    if not all(isinstance(e, int) for e in sizes):
        raise NotThisForm("a convolution of dynamic size")
    images, height, width, filters, groups, fold, window = sizes[:7]
    n, y, w, o = parallel
    g, f, e = reduced

    def place(load: Any) -> list[tuple[dict[Any, int], int]]:
        return [linear(i, anchor.axes, anchor.extents) for i in load.indices]

    def only(axes: dict[Any, int]) -> tuple[dict[Any, int], int]:
        return {v: s for v, s in axes.items() if anchor.extent(v) != 1}, 0

    at_x = place(x)
    step, pixel = at_x[1][0].get(y, 1), at_x[2][0].get(w, 1)
    wanted_x = [only({n: 1}), only({y: step, g: fold, f: 1}), only({w: pixel, e: 1})]
    wanted_w = [only({o: 1}), only({g: 1}), only({f: 1}), only({e: 1})]
    if at_x != wanted_x or place(weight) != wanted_w or sizes[7] != images:
        raise NotThisForm("not the lines of an image")
    return LineProblem(
        images, height, width, filters, (sizes[8], sizes[9]), groups, fold, window, step, pixel,
        dtype, out,
    )  # fmt: skip


def _check_padding(condition: Any, load: Any) -> None:
    """Refuse a condition that is more than "within the tensor"."""
    analyzer = sym.Analyzer()
    bounds = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        bounds += [index, extent - 1 - index]
    todo = [condition]
    while todo:
        one = todo.pop()
        if isinstance(one, tirx.And):
            todo += [one.a, one.b]
            continue
        if isinstance(one, tirx.LE):
            least = one.b - one.a
        elif isinstance(one, tirx.LT):
            least = one.b - one.a - 1
        elif isinstance(one, tirx.GE):
            least = one.a - one.b
        elif isinstance(one, tirx.GT):
            least = one.a - one.b - 1
        else:
            raise NotThisForm("padding by a condition that is not known")
        if not any(analyzer.can_prove_equal(least, bound) for bound in bounds):
            raise NotThisForm("padding by a condition that is not known")

