"""Functions of network size: every heavy loop nest is parallel and vectorised."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from tvm import relax, s_tir, tirx

from tests.kernels.cpu.harness import ARCH, lower, prim_funcs
from tests.kernels.cpu.harness import NARROW as NARROW_FOUR
from tvmopt.kernels.first_choice import schedule_function

op, nn = relax.op, relax.op.nn
NARROW = dataclasses.replace(NARROW_FOUR, cores=2)
# Number of stores from which vectors pay off, and from which a parallel launch of vectors pays off;
# and their share of the heaviest nest of the function.
HEAVY, VERY_HEAVY, SHARE = 16 * 1024, 512 * 1024, 0.25
_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def _f32(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


CASES = {
    "conv_3x3": (lambda x, w: nn.conv2d(x, w, padding=1, **_LAST),
                 [_f32(1, 28, 28, 64), _f32(3, 3, 64, 64)]),
    "conv_first": (lambda x, w: nn.conv2d(x, w, strides=2, padding=3, **_LAST),
                   [_f32(1, 112, 112, 3), _f32(7, 7, 3, 64)]),
    "conv_first_nchw": (lambda x, w: nn.conv2d(x, w, strides=2, padding=3),
                        [_f32(1, 3, 112, 112), _f32(64, 3, 7, 7)]),
    "conv_1x1": (lambda x, w: nn.conv2d(x, w, **_LAST), [_f32(1, 28, 28, 96), _f32(1, 1, 96, 24)]),
    "conv_prime": (lambda x, w: nn.conv2d(x, w, padding=1, **_LAST),
                   [_f32(1, 29, 31, 13), _f32(3, 3, 13, 37)]),
    "conv_grouped": (lambda x, w: nn.conv2d(x, w, padding=1, groups=4, **_LAST),
                     [_f32(1, 28, 28, 64), _f32(3, 3, 16, 64)]),
    "depthwise": (lambda x, w: nn.conv2d(x, w, padding=1, groups=96, **_LAST),
                  [_f32(1, 56, 56, 96), _f32(3, 3, 1, 96)]),
    "depthwise_nchw": (lambda x, w: nn.conv2d(x, w, padding=1, groups=96),
                       [_f32(1, 96, 56, 56), _f32(96, 1, 3, 3)]),
    "conv_transpose": (
        lambda x, w: nn.conv2d_transpose(x, w, (2, 2), data_layout="NHWC", kernel_layout="HWIO"),
        [_f32(1, 20, 20, 24), _f32(2, 2, 24, 24)]),
    "conv_transpose_nchw": (lambda x, w: nn.conv2d_transpose(x, w, (2, 2)),
                            [_f32(1, 24, 20, 20), _f32(24, 24, 2, 2)]),
    "matmul": (op.matmul, [_f32(128, 384), _f32(384, 384)]),
    "matmul_row": (op.matmul, [_f32(1, 512), _f32(512, 1000)]),
    "matmul_nt": (lambda a, b: op.matmul(a, op.permute_dims(b, [0, 2, 1])),
                  [_f32(12, 128, 32), _f32(12, 128, 32)]),
    "max_pool": (lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), [_f32(1, 112, 112, 64)]),
    "max_pool_nchw": (lambda x: nn.max_pool2d(x, 3, 2, 1), [_f32(1, 64, 112, 112)]),
    "global_pool": (lambda x: op.mean(x, [1, 2]), [_f32(1, 16, 16, 512)]),
    "global_pool_nchw": (lambda x: op.mean(x, [2, 3]), [_f32(1, 512, 16, 16)]),
    "softmax": (lambda x: nn.softmax(x, -1), [_f32(12, 128, 128)]),
    "softmax_channels": (lambda x: nn.softmax(x, 1), [_f32(1, 19, 64, 64)]),
    "log_softmax": (lambda x: nn.log_softmax(x, -1), [_f32(128, 512)]),
    "layer_norm": (lambda x, g, b: nn.layer_norm(x, g, b, [-1]),
                   [_f32(128, 384), _f32(384), _f32(384)]),
    "sum_rows": (lambda x: op.sum(x, 0), [_f32(512, 256)]),
    "argmax_rows": (lambda x: op.argmax(x, -1), [_f32(256, 512)]),
    "argmax_channels": (lambda x: op.argmax(x, 1), [_f32(1, 19, 128, 128)]),
    "relu": (nn.relu, [_f32(1, 64, 56, 56)]),
    "transpose": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), [_f32(1, 64, 56, 56)]),
    "transpose_last": (lambda x: op.permute_dims(x, [0, 3, 1, 2]), [_f32(1, 56, 56, 64)]),
    "concat_channels": (lambda a, b: op.concat([a, b], -1),
                        [_f32(1, 28, 28, 64), _f32(1, 28, 28, 96)]),
    "concat_ragged": (lambda a, b: op.concat([a, b], -1),
                      [_f32(1, 56, 56, 24), _f32(1, 56, 56, 13)]),
    "pad": (lambda x: nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0]), [_f32(1, 56, 56, 32)]),
    "resize": (
        lambda x: op.image.resize2d(x, (80, 80), layout="NHWC", method="nearest_neighbor"),
        [_f32(1, 40, 40, 24)]),
    "resize_linear": (
        lambda x: op.image.resize2d(x, (80, 80), layout="NCHW", method="linear"),
        [_f32(1, 24, 40, 40)]),
    "take": (lambda x, i: op.take(x, i, 0), [_f32(1000, 384), ((128,), "int64")]),
    "slice": (lambda x: op.strided_slice(x, [1, 2], [0, 0], [56, 56], [2, 2]),
              [_f32(1, 112, 112, 32)]),
}  # fmt: skip

# Still scalar: no template covers these yet.
SERIAL: dict[str, str] = {}


def _nests(stmt: tirx.Stmt, loops: tuple[tirx.For, ...] = ()) -> Iterator[tuple[tirx.For, ...]]:
    """Return the loops around each store."""
    if isinstance(stmt, tirx.For):
        yield from _nests(stmt.body, (*loops, stmt))
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _nests(part, loops)
    elif isinstance(stmt, s_tir.SBlockRealize):
        yield from _nests(stmt.block.body, loops)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _nests(stmt.body, loops)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from _nests(stmt.then_case, loops)
        if stmt.else_case is not None:
            yield from _nests(stmt.else_case, loops)
    elif not isinstance(stmt, tirx.Evaluate):  # a prefetch stores nothing
        yield loops


@pytest.mark.parametrize("arch", [ARCH, NARROW], ids=["512", "256"])
@pytest.mark.parametrize("name", CASES)
def test_heavy_nests_are_parallel_and_vectorised(name: str, arch, request) -> None:
    if name in SERIAL:
        request.applymarker(pytest.mark.xfail(strict=True, reason=SERIAL[name]))
    build, operands = CASES[name]
    for func in prim_funcs(lower(build, operands)).values():
        result = schedule_function(func, arch)
        assert result.hint is not None, result.rule
        nests = list(_nests(result.func.body))
        stores = [int(np.prod([int(x.extent) for x in loops], initial=1)) for loops in nests]
        for loops, count in zip(nests, stores, strict=True):
            if count < max(HEAVY, SHARE * max(stores)):
                continue
            kinds = {loop.kind for loop in loops}
            text = f"{result.hint}: " + ", ".join(f"{x.loop_var.name}:{x.extent}" for x in loops)
            assert tirx.ForKind.VECTORIZED in kinds, f"scalar under {text}"
            if count >= VERY_HEAVY:
                assert tirx.ForKind.PARALLEL in kinds, f"serial under {text}"
