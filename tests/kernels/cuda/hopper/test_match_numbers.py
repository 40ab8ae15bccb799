"""A matched problem, evaluated in NumPy, equals the function, compiled for the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import ir, relax, te, tirx

from tests.kernels.cuda.hopper.sources import functions, lowered
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.match import Match, match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

OP = relax.op


def _value(expr, arrays):
    """Evaluate an expression without variables."""
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return expr.value
    if isinstance(expr, tirx.Cast):
        inner = _value(expr.value, arrays)
        dtype = str(expr.ty.dtype)
        return int(inner) if "int" in dtype else np.dtype(dtype).type(inner)
    if isinstance(expr, ir.TensorLoad):
        indices = tuple(int(_value(i, arrays)) for i in expr.indices)
        [array] = [a for b, a in arrays if b.same_as(expr.source)]
        return array[indices]
    if isinstance(expr, ir.Call):
        [x] = [_value(a, arrays) for a in expr.args]
        name = expr.op.name.split(".")[-1]
        functions = {"erf": math.erf, "exp": math.exp, "tanh": math.tanh, "round": round,
                     "sigmoid": lambda v: 1 / (1 + math.exp(-v))}  # fmt: skip
        return functions[name](float(x))
    a, b = _value(expr.a, arrays), _value(expr.b, arrays)
    return {
        tirx.Add: lambda: a + b, tirx.Sub: lambda: a - b, tirx.Mul: lambda: a * b,
        tirx.Div: lambda: a // b if isinstance(a, int) else a / b, tirx.Mod: lambda: a % b,
        tirx.FloorDiv: lambda: a // b, tirx.FloorMod: lambda: a % b,
        tirx.Max: lambda: max(a, b), tirx.Min: lambda: min(a, b),
    }[type(expr)]()  # fmt: skip


def _gemm_sums(p: GemmProblem, a, b):
    a_shape = (p.k, p.m) if p.trans_a else (p.m, p.k)
    b_shape = (p.n, p.k) if p.trans_b else (p.k, p.n)
    a = a.reshape(*((p.batch,) if p.batch_a else (1,)), *a_shape).astype("f8")
    b = b.reshape(*((p.batch,) if p.batch_b else (1,)), *b_shape).astype("f8")
    a = a.swapaxes(1, 2) if p.trans_a else a
    b = b.swapaxes(1, 2) if p.trans_b else b
    sums = np.broadcast_to(a @ b, (p.batch, p.m, p.n))
    return sums if p.batch > 1 else sums[0]


def _conv_sums(p: ConvProblem, x, w):
    high, wide = p.out_size
    (kh, kw), (sh, sw), (dh, dw) = p.kernel, p.stride, p.dilation
    w = w.astype("f8") if p.weight == "HWIO" else w.transpose(1, 2, 3, 0).astype("f8")
    sums = np.zeros((p.images, high, wide, p.filters))
    for n, y, z, r, s in np.ndindex(p.images, high, wide, kh, kw):
        row, column = y * sh - p.padding[0] + r * dh, z * sw - p.padding[1] + s * dw
        if 0 <= row < p.height and 0 <= column < p.width:
            sums[n, y, z] += x[n, row, column].astype("f8") @ w[r, s]
    return sums


def _check(func):
    found = match(func)
    assert isinstance(found, Match), found
    rng = np.random.default_rng(0)
    signature, p = found.signature, found.problem
    arrays = []
    for buffer in signature.buffers:
        shape, dtype = [int(d) for d in buffer.shape], str(buffer.dtype)
        arrays.append(rng.integers(-3, 4, shape).astype(dtype))
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    tvm.compile(mod, target="llvm")["main"](*tensors)
    a, b = arrays[signature.a], arrays[signature.b]
    sums = _gemm_sums(p, a, b) if isinstance(p, GemmProblem) else _conv_sums(p, a, b)
    epilogue = p.epilogue_or_cast()
    inputs = [
        (buffer, arrays[i]) for buffer, i in zip(epilogue.inputs, signature.inputs, strict=True)
    ]
    got = np.empty(sums.shape)
    for place in np.ndindex(*sums.shape):
        total = tirx.FloatImm("float32", float(sums[place]))
        if p.accumulator == "int32":
            total = tirx.IntImm("int32", int(sums[place]))
        got[place] = _value(epilogue.at(total, [tirx.IntImm("int32", i) for i in place]), inputs)
    want = tensors[signature.out].numpy().astype("f8")
    np.testing.assert_allclose(got.ravel(), want.ravel(), rtol=2e-3, atol=2e-3)


def _conv(x, w, **fields):
    fields = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC", **fields}
    return OP.nn.conv2d(x, w, **fields)


def _turned(x, w):
    k = te.reduce_axis((0, x.shape[0]), "k")
    return te.compute((x.shape[1], w.shape[0]), lambda i, j: te.sum(x[k, i] * w[j, k], axis=k))


F16 = "float16"
CASES = {
    "bias": (
        [("x", (3, 5, 8), F16), ("w", (8, 16), F16), ("b", (16,), F16)],
        lambda emit, x, w, b: emit(OP.nn.gelu(emit(OP.add(emit(OP.matmul(x, w)), b)))),
    ),
    "residual": (
        [("r", (3, 5, 16), F16), ("x", (3, 5, 8), F16), ("w", (8, 16), F16)],
        lambda emit, r, x, w: emit(OP.nn.relu(emit(OP.add(r, emit(OP.matmul(x, w)))))),
    ),
    "one row of many": (
        [("x", (3, 5, 8), F16), ("w", (8, 16), F16), ("b", (5, 1), F16), ("c", (3, 1, 16), F16)],
        lambda emit, x, w, b, c: emit(
            OP.multiply(emit(OP.add(emit(OP.matmul(x, w)), b)), c)
        ),
    ),
    "batches": (
        [("x", (2, 3, 5, 8), F16), ("w", (2, 3, 8, 16), F16), ("b", (3, 1, 1), F16)],
        lambda emit, x, w, b: emit(OP.add(emit(OP.matmul(x, w)), b)),
    ),
    "unit axes": (
        [("x", (1, 5, 8), F16), ("w", (1, 8, 16), F16), ("b", (1, 1, 16), F16)],
        lambda emit, x, w, b: emit(OP.add(emit(OP.matmul(x, w)), b)),
    ),
    "one row": (
        [("x", (1, 8), F16), ("w", (8, 16), F16), ("b", (16,), F16)],
        lambda emit, x, w, b: emit(OP.add(emit(OP.matmul(x, w)), b)),
    ),
    "weights for all": (
        [("x", (5, 8), F16), ("w", (3, 8, 16), F16)],
        lambda emit, x, w: emit(OP.matmul(x, w)),
    ),
    "square": (
        [("x", (8, 8), F16), ("w", (8, 8), F16)],
        lambda emit, x, w: emit(OP.add(emit(OP.matmul(x, w)), x)),
    ),
    "itself": (
        [("x", (8, 8), F16)],
        lambda emit, x: emit(OP.matmul(x, x)),
    ),
    "both transposed": (
        [("x", (8, 16), F16), ("w", (24, 8), F16)],
        lambda emit, x, w: emit(relax.BlockBuilder.current().call_te(_turned, x, w)),
    ),
    "convolution": (
        [("x", (2, 7, 6, 8), F16), ("w", (3, 2, 8, 16), F16), ("b", (1, 1, 1, 16), F16)],
        lambda emit, x, w, b: emit(
            OP.nn.relu(
                emit(OP.add(emit(_conv(x, w, strides=(2, 1), padding=(1, 0, 2, 1))), b))
            )
        ),
    ),
    "dilated": (
        [("x", (1, 9, 8, 8), F16), ("w", (16, 3, 3, 8), F16), ("r", (1, 7, 4, 16), F16)],
        lambda emit, x, w, r: emit(
            OP.add(
                emit(
                    _conv(
                        x, w, dilation=(1, 2), kernel_layout="OHWI",
                    )
                ),
                r,
            )
        ),
    ),
    "pixels": (
        [("x", (2, 4, 3, 8), F16), ("w", (1, 1, 8, 16), F16), ("r", (2, 4, 3, 16), F16)],
        lambda emit, x, w, r: emit(OP.add(emit(_conv(x, w)), r)),
    ),
    "every other pixel": (
        [("x", (2, 5, 4, 8), F16), ("w", (1, 1, 8, 16), F16)],
        lambda emit, x, w: emit(_conv(x, w, strides=(2, 2))),
    ),
    "bytes": (
        [("x", (2, 5, 4, 16), "int8"), ("w", (16, 3, 3, 16), "int8"), ("s", (16,), "float32")],
        lambda emit, x, w, s: emit(
            OP.multiply(
                emit(
                    OP.astype(
                        emit(
                            _conv(
                                x, w, padding=(1, 1, 1, 1), kernel_layout="OHWI",
                                out_dtype="int32",
                            )
                        ),
                        "float32",
                    )
                ),
                s,
            )
        ),
    ),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_match_is_equivalent(name):
    matched = 0
    for func in functions(lowered(*CASES[name])).values():
        if isinstance(match(func), Match):
            _check(func)
            matched += 1
    assert matched == 1
