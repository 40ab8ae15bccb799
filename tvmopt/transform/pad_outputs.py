"""Pad a number of outputs that no tile of vectors divides, such as 257 of a Fourier transform.

before -> after, for w (1, 512, 1, 257)::

    y = relu(add(conv2d(x, w), b))

    y = strided_slice(relu(add(conv2d(x, pad(w)), pad(b))), axes=[3], begin=[0], end=[257])

The width of a register tile divides the outputs. A prime above the largest width leaves tiles of
one output. Matrix tiles need a multiple of 8 outputs. Elementwise operators of constants and padded
tensors keep the padding, so that they still fuse.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax, topi
from tvm.ir import GenericConst
from tvm.relax.expr_functor import mutator
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics.choose import tiled
from tvmopt.transform.bound_calls import AlternativeMutator
from tvmopt.transform.conv2d import COLUMNS, ROWS, ints
from tvmopt.transform.conv2d_call import NHWC, layouts_of
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.layout.rules.elementwise import BINARY, UNARY
from tvmopt.transform.rewrite import rewrite_functions, without_dead_code

# Elements of the widest vector, and of the widest register tile, in float32.
_LANES, _WIDEST = 16, 256
# Minimum share of the lanes that a tile of the best width fills.
_GOOD_USE = 0.8
# Outputs of a matrix tile are a multiple of the first number, and at most the second.
_TILE_STEP, _TILE_COLUMNS = 8, 16
# Pattern of an operator that does not fuse behind a reduction: OpPatternKind.INJECTIVE of TVM.
_INJECTIVE = 2
_ELEMENTWISE = frozenset(f"relax.{name}" for name in (*UNARY, *BINARY))
_CONVOLUTIONS = (NHWC, ROWS, COLUMNS)


@tvm.transform.module_pass(opt_level=0, name="PadOutputs")
class PadOutputs:
    """Pad outputs of matmuls and NHWC convolutions; see the module docstring.

    Args:
        target: Target to compile for; nothing changes for other kinds than CPUs.
    """

    def __init__(self, target: Target | None) -> None:
        self.is_cpu = target is not None and target.kind.name == "llvm"
        self.tiled = frozenset() if target is None else tiled(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all Relax functions."""
        if not self.is_cpu:
            return mod
        rewriter = _PadOutputs(mod, self.tiled)
        padded = rewrite_functions(mod, rewriter)
        return without_dead_code(padded) if rewriter.alternatives else mod


def padded_outputs(outputs: int, tiles: bool) -> int:
    """Return the outputs, filled up to whole vectors where no tile width divides them well.

    Args:
        outputs: Outputs of a matmul or a convolution.
        tiles: Whether the target has matrix tiles for the operands.
    """
    if tiles:
        fits = outputs % _TILE_STEP == 0 or outputs <= _TILE_COLUMNS
    elif outputs <= _WIDEST:
        fits = True
    else:
        widths = (w for w in range(1, _WIDEST + 1) if outputs % w == 0)
        fits = any(w / (math.ceil(w / _LANES) * _LANES) >= _GOOD_USE for w in widths)
    return outputs if fits else math.ceil(outputs / _LANES) * _LANES


@mutator
class _PadOutputs(AlternativeMutator):
    """The alternative of a tensor is one with more outputs, its last axis."""

    def __init__(self, mod: tvm.IRModule, tiled_pairs: frozenset[tuple[str, str]]) -> None:
        super().__init__(mod)
        self._tiled = tiled_pairs

    def view(self, alternative: relax.Var, call: relax.Call) -> relax.Expr:
        shape = ints(call.ty.shape)
        if not self._tiled:
            return relax.op.strided_slice(alternative, [len(shape) - 1], [0], [shape[-1]])
        # A kernel of matrix tiles has no epilogue with fewer outputs.
        return self.builder_.call_te(
            topi.strided_slice,
            alternative,
            [0] * len(shape),
            shape,
            primfunc_name_hint="slice",
            primfunc_attrs={"op_pattern": _INJECTIVE},
        )

    def alternative(self, call: relax.Call) -> relax.Expr | None:
        if not isinstance(call.op, tvm.ir.Op) or static_shape(call) is None:
            return None
        if call.op.name in _ELEMENTWISE:
            return self._elementwise(call)
        if not _has_constant_weight(call):
            return None
        data, weight = call.args
        outputs = int(weight.ty.shape[-1])
        tiles = (str(data.ty.dtype), str(weight.ty.dtype)) in self._tiled
        missing = padded_outputs(outputs, tiles) - outputs
        if not missing:
            return None
        args = [self.visit_expr(data), self._padded(weight, missing)]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _elementwise(self, call: relax.Call) -> relax.Expr | None:
        shape = static_shape(call)
        found = [self.alternative_of(arg) for arg in call.args]
        known = [var for var in found if var is not None]
        if not known or shape is None:
            return None
        missing = int(known[0].ty.shape[-1]) - shape[-1]
        args = []
        for arg, var in zip(call.args, found, strict=True):
            tensor = isinstance(arg.ty, relax.TensorType) and arg.ty.ndim > 0
            if var is not None:
                args.append(var)
            elif not tensor or (static_shape(arg) or (0,))[-1] == 1:
                args.append(self.visit_expr(arg))
            elif isinstance(arg, GenericConst):
                args.append(self._padded(arg, missing))
            else:
                return None
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _padded(self, constant: relax.Expr, missing: int) -> relax.Expr:
        widths = [0] * (2 * constant.ty.ndim - 1) + [missing]
        return self.builder_.emit(relax.op.nn.pad(constant, widths))


def _has_constant_weight(call: relax.Call) -> bool:
    """Return whether a call is a matmul or convolution whose outputs are the weight's last axis."""
    if call.op.name not in ("relax.matmul", "relax.nn.conv2d"):
        return False
    weight = call.args[1]
    if not isinstance(weight, GenericConst) or static_shape(weight) is None:
        return False
    if call.op.name == "relax.matmul":
        return bool(weight.ty.ndim == 2 and call.args[0].ty.ndim > 1)
    return layouts_of(call) in _CONVOLUTIONS and int(call.attrs.groups) == 1
