"""Matching of fused functions to GEMMs and convolutions."""

from __future__ import annotations

import pytest
from tvm import relax, te

from tests.kernels.cuda.hopper.sources import functions, lowered, only_function
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.match import Match, match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.workload import Refusal

OP = relax.op


def _found(params, body) -> Match:
    found = match(only_function(lowered(params, body)))
    assert isinstance(found, Match), found
    return found


def _conv(x, w, **fields):
    fields = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC", **fields}
    return OP.nn.conv2d(x, w, **fields)


def test_linear_layer_is_one_gemm():
    found = _found(
        [("x", (4, 128, 768), "float16"), ("w", (768, 512), "float16"), ("b", (512,), "float16")],
        lambda emit, x, w, b: emit(OP.nn.relu(emit(OP.add(emit(OP.matmul(x, w)), b)))),
    )
    p = found.problem
    assert isinstance(p, GemmProblem)
    assert (p.batch, p.m, p.n, p.k) == (1, 512, 512, 768)
    assert not p.trans_a and not p.trans_b and not p.dynamic
    assert (p.dtype, p.out) == ("float16", "float16")
    assert len(found.signature.inputs) == 1
    assert len(p.epilogue.axes) == 2
    [(_, along)] = p.epilogue.reads
    assert along == (False, True)
    assert len({found.signature.a, found.signature.b, found.signature.out}) == 3


def test_residual_is_read_at_the_output():
    found = _found(
        [("x", (4, 8, 64), "float16"), ("w", (64, 64), "float16"), ("r", (4, 8, 64), "float16")],
        lambda emit, x, w, r: emit(OP.add(emit(OP.matmul(x, w)), r)),
    )
    [(_, along)] = found.problem.epilogue.reads
    assert along == (True, True)


def test_residual_may_be_the_operand():
    found = _found(
        [("x", (64, 64), "float16"), ("w", (64, 64), "float16")],
        lambda emit, x, w: emit(OP.add(emit(OP.matmul(x, w)), x)),
    )
    assert found.signature.inputs == (found.signature.a,)


def test_batched_gemm():
    found = _found(
        [("q", (2, 12, 128, 64), "float16"), ("k", (2, 12, 64, 96), "float16")],
        lambda emit, q, k: emit(OP.matmul(q, k)),
    )
    p = found.problem
    assert (p.batch, p.m, p.n, p.k) == (24, 128, 96, 64)
    assert p.batch_a and p.batch_b


def test_dynamic_rows():
    found = _found(
        [("x", ("m", 768), "float16"), ("w", (768, 512), "float16")],
        lambda emit, x, w: emit(OP.matmul(x, w)),
    )
    assert found.problem.dynamic and found.signature.rows is not None


def test_single_row():
    p = _found(
        [("x", (1, 512), "float16"), ("w", (512, 256), "float16"), ("b", (256,), "float16")],
        lambda emit, x, w, b: emit(OP.add(emit(OP.matmul(x, w)), b)),
    ).problem
    assert (p.m, p.n, p.k) == (1, 256, 512)


def _transposed(x, w):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute(
        (x.shape[0], w.shape[0]),
        lambda i, j: te.sum(x[i, k].astype("int32") * w[j, k].astype("int32"), axis=k),
    )


def test_int8_gemm():
    p = _found(
        [("x", (64, 512), "int8"), ("w", (256, 512), "int8")],
        lambda emit, x, w: emit(relax.BlockBuilder.current().call_te(_transposed, x, w)),
    ).problem
    assert (p.dtype, p.out, p.trans_b) == ("int8", "int32", True)


@pytest.mark.parametrize("layout", ["HWIO", "OHWI"])
def test_convolution(layout):
    weight = (3, 3, 64, 96) if layout == "HWIO" else (96, 3, 3, 64)
    found = _found(
        [("x", (2, 30, 20, 64), "float16"), ("w", weight, "float16"),
         ("b", (1, 1, 1, 96), "float16")],
        lambda emit, x, w, b: emit(
            OP.nn.relu(
                emit(
                    OP.add(
                        emit(
                            _conv(
                                x, w, strides=(2, 1), padding=(1, 2, 1, 2), dilation=(1, 2),
                                kernel_layout=layout,
                            )
                        ),
                        b,
                    )
                )
            )
        ),
    )  # fmt: skip
    p = found.problem
    assert isinstance(p, ConvProblem)
    assert (p.images, p.height, p.width, p.channels, p.filters) == (2, 30, 20, 64, 96)
    assert (p.kernel, p.stride, p.dilation, p.weight) == ((3, 3), (2, 1), (1, 2), layout)
    assert p.padding[:2] == (1, 2)
    assert p.out_size == (15, 20)
    assert len(found.signature.inputs) == 1


def test_window_of_one_pixel():
    p = _found(
        [("x", (2, 28, 28, 64), "float16"), ("w", (1, 1, 64, 96), "float16")],
        lambda emit, x, w: emit(_conv(x, w, strides=(2, 2))),
    ).problem
    assert isinstance(p, ConvProblem) and (p.kernel, p.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize(
    ("params", "body", "reason"),
    [
        (
            [("x", (64, 63), "float32"), ("w", (63, 64), "float32")],
            lambda emit, x, w: emit(OP.matmul(x, w)),
            "float32 operands are split from K = 64 on, but K is 63",
        ),
        (
            [("x", (1, 8, 8, 64), "float32"), ("w", (3, 3, 64, 64), "float32")],
            lambda emit, x, w: emit(_conv(x, w)),
            "float32 operands need allow_tf32 for tensor cores",
        ),
        (
            [("x", ("m", 63), "float16"), ("w", (63, 64), "float16")],
            lambda emit, x, w: emit(OP.matmul(x, w)),
            "multiple of 16 bytes",
        ),
        (
            [("x", (64, 64), "float16")],
            lambda emit, x: emit(OP.sum(x, axis=1)),
            "does not add up products",
        ),
        (
            [("x", (64, 64), "int8"), ("w", (64, 64), "int8")],
            lambda emit, x, w: emit(OP.matmul(x, w)),
            "fewer than 32 bits",
        ),
        (
            [("x", (64, 64), "float16"), ("w", (64, 64), "float16")],
            lambda emit, x, w: emit(OP.matmul(x, w, out_dtype="float64")),
            "with a lossy cast",
        ),
        (
            [("x", (64, 64), "float16"), ("y", (64, 64), "float16")],
            lambda emit, x, y: emit(OP.add(x, y)),
            "0 reductions, not one",
        ),
        (
            [
                ("x", (2, 1, 1, 64), "float16"),
                ("w", (1, 1, 64, 64), "float16"),
                ("y", (2, 8, 8, 64), "float16"),
            ],
            lambda emit, x, w, y: emit(OP.multiply(y, emit(_conv(x, w)))),
            "broadcast before the store",
        ),
    ],
)
def test_reasons(params, body, reason):
    reasons = [match(f) for f in functions(lowered(params, body)).values()]
    assert any(isinstance(r, Refusal) and reason in r.reason for r in reasons), reasons
