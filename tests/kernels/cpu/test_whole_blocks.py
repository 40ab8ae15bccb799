"""Rows in whole blocks, and image lines as rows of one matrix."""

from __future__ import annotations

import hypothesis
import numpy as np
import tvm
from hypothesis import strategies
from tvm import relax, tirx
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cpu import harness
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, match_contraction
from tvmopt.kernels.cpu.matrix_tile.flat_rows import match_flat_rows
from tvmopt.kernels.cpu.matrix_tile.whole_blocks import can_overlap, with_whole_blocks
from tvmopt.kernels.cpu.passes.parameter_shapes import restore_shapes
from tvmopt.kernels.scheduled import REWRITTEN_ATTR


@T.prim_func(s_tir=True)
def product(a: T.Buffer((19, 8)), b: T.Buffer((8, 16)), y: T.Buffer((19, 16))):
    c = T.sblock_alloc_buffer((19, 16))
    for i, j, k in T.grid(19, 16, 8):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]
    for i, j in T.grid(19, 16):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = T.max(c[vi, vj], T.float32(0))


@T.prim_func(s_tir=True)
def product_in_blocks(a: T.Buffer((19, 8)), b: T.Buffer((8, 16)), y: T.Buffer((19, 16))):
    T.func_attr({"tvmopt.rewritten": True})
    c = T.sblock_alloc_buffer((32, 16), scope="local")
    for i, j, k in T.grid(32, 16, 8):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            T.reads(a[T.min(vi // 16 * 16, 3) + vi % 16, vk], b[vk, vj])
            T.writes(c[vi, vj])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[T.min(vi // 16 * 16, 3) + vi % 16, vk] * b[vk, vj]
    for i, j in T.grid(32, 16):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(c[vi, vj])
            T.writes(y[T.min(vi // 16 * 16, 3) + vi % 16, vj])
            y[T.min(vi // 16 * 16, 3) + vi % 16, vj] = T.max(c[vi, vj], T.float32(0))


def test_the_last_block_starts_earlier() -> None:
    form = _form(product)
    sch, anchor, epilogue = with_whole_blocks(form, {0: 16})
    expected = product_in_blocks.with_attr("global_symbol", "main")
    tvm.ir.assert_structural_equal(sch.mod["main"].with_attr("global_symbol", "main"), expected)
    assert [sch.get(b).name_hint for b in (anchor, epilogue)] == ["product", "relu"]


def test_blocks_may_overlap_where_no_other_stage_reads_them() -> None:
    assert can_overlap(_form(product))
    operands = [((1, 3, 19, 8), "float32"), ((1, 1, 8, 16), "float32")]
    [func] = harness.prim_funcs(harness.lower(_sliced, operands)).values()
    assert not can_overlap(_form(func))


def test_rows_that_divide_stay() -> None:
    form = _form(product)
    sch, *_ = with_whole_blocks(form, {0: 19})
    assert sch is form.sch


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    lines=strategies.integers(1, 5),
    pixels=strategies.integers(2, 21),
    images=strategies.integers(1, 2),
    size=strategies.integers(1, 16),
)
def test_numbers_of_any_number_of_rows(lines: int, pixels: int, images: int, size: int) -> None:
    """A 1 x 1 convolution of images of any size, in blocks of any size."""
    operands = [((images, lines, pixels, 8), "float32"), ((1, 1, 8, 16), "float32")]
    [func] = harness.prim_funcs(harness.lower(_convolution, operands)).values()
    form = match_flat_rows(func)
    assert isinstance(form, ContractionForm)
    *rows, _ = form.facts.spatial
    wide = max(rows, key=lambda i: form.facts.axes[i].extent)
    size = min(size, form.facts.axes[wide].extent)
    sch, *_ = with_whole_blocks(form, {wide: size})
    kernel = restore_shapes(sch.mod["main"], func)
    assert REWRITTEN_ATTR not in kernel.attrs
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([int(e) for e in p.shape], np.float32) for p in func.params[:-1])
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(module, target=harness.TARGET, pipeline="s_tir")
    out = tvm.runtime.empty((images, lines, pixels, 16), "float32")
    built["main"](*map(tvm.runtime.tensor, (x, w)), out)
    np.testing.assert_allclose(out.numpy(), x @ w[0, 0], rtol=1e-4, atol=1e-4)


def _convolution(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    return relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")


def _sliced(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    """Return the convolution's result without the last pixel of each line: two stages."""
    return relax.op.nn.relu(relax.op.strided_slice(_convolution(x, w), [2], [0], [18]))


def _form(func: tirx.PrimFunc) -> ContractionForm:
    form = match_contraction(func)
    assert isinstance(form, ContractionForm)
    return form
