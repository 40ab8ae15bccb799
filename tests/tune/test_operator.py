"""The anchor operator of a fused function: what extraction removes, what it keeps, its results."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, tirx

from tests.kernels.cpu.drawn import BFLOAT16, BYTES, FLOAT, Drawn
from tests.kernels.cpu.harness import assert_close
from tvmopt.transform.lower import lower
from tvmopt.tune import extract_tasks
from tvmopt.tune.operator import (
    anchor_block,
    operator_blocks,
    operator_function,
    why_no_operator,
)

from .fused import after, convolution, functions, fused, fused_function, matmul, residual_first
from .models import TARGET, symbolic_net

op, nn = relax.op, relax.op.nn
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def tensor(name: str, *shape: int) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, "float32"))


def single(build, *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    """Return the only function of ``build`` for inputs of these shapes."""
    builder = relax.BlockBuilder()
    inputs = [tensor(f"x{n}", *shape) for n, shape in enumerate(shapes)]
    with builder.function("main", inputs, {"num_input": len(inputs)}):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*inputs)))
        builder.emit_func_output(out)
    [func] = functions(lower(builder.get(), TARGET))
    return func


def cut(func: tirx.PrimFunc) -> tirx.PrimFunc:
    operator = operator_function(func)
    assert operator is not None
    return operator


# ---- what is removed ----

CONV, WEIGHT = (1, 9, 9, 8), (3, 3, 8, 16)


def in_bfloat16(epilogue: str) -> Drawn:
    """Accumulate in float32; the epilogue rounds."""
    drawn = matmul((8, 16), (16, 24), "none", types=BFLOAT16)
    if epilogue == "none":
        return drawn
    return after(drawn, lambda y: nn.relu(op.astype(y, "bfloat16")), lambda y: np.maximum(y, 0))


@pytest.mark.parametrize(
    ("make", "epilogue", "dtype"),
    [
        (lambda e: convolution(CONV, WEIGHT, e), "bias_relu", "float32"),
        (lambda e: convolution(CONV, WEIGHT, e, strides=2), "bias_residual_relu", "float32"),
        (lambda e: convolution((1, 8, 9, 9), (16, 8, 3, 3), e, layout="NCHW"), "clip", "float32"),
        (lambda e: convolution(CONV, (3, 3, 1, 8), e, groups=8), "bias_hard_swish", "float32"),
        (lambda e: convolution(CONV, WEIGHT, e), "float16", "float32"),
        (lambda e: convolution(CONV, WEIGHT, e, types=BYTES), "bias_residual_uint8", "int32"),
        (lambda e: matmul((8, 16), (16, 24), e, types=BYTES), "bias_int8", "int32"),
        (lambda e: matmul((8, 16), (16, 24), e), "bias", "float32"),
        (lambda e: matmul((2, 8, 16), (2, 16, 24), e, constant=False), "bias", "float32"),
        (in_bfloat16, "relu", "float32"),
    ],
)
def test_what_is_left_is_the_product_alone(make, epilogue: str, dtype: str) -> None:
    """It equals the function of a network that ends with the matmul or convolution."""
    func, alone = fused_functions(make(epilogue)), fused_functions(make("none"))
    # Another function may prepare the weight or pad the data; the anchor is in the last function.
    operator = cut(func[-1])
    assert len(operator_blocks(func[-1])) < len(tir_blocks(func[-1]))
    assert str(operator.params[-1].dtype) == dtype
    tvm.ir.assert_structural_equal(operator, cut(alone[-1]))
    # Extraction is idempotent.
    tvm.ir.assert_structural_equal(cut(operator), operator)


def fused_functions(drawn: Drawn) -> list[tirx.PrimFunc]:
    """Return the functions of ``drawn``; the function with the anchor is last."""
    found = functions(fused(drawn))
    return sorted(found, key=lambda f: anchor_block(f) is not None)


def tir_blocks(func: tirx.PrimFunc) -> list[str]:
    names: list[str] = []
    tvm_ffi.structural_walk(func, (tvm.s_tir.SBlock, lambda block: names.append(block.name_hint)))
    return [name for name in names if name != "root"]


def test_what_stands_before_the_anchor_but_is_none_of_it_is_cut_off() -> None:
    """fused(residual, x, w): cast; multiply; pad; conv2d; add -> operator(x, w): pad; conv2d."""
    func = fused_function(residual_first())
    assert tir_blocks(func)[:2] == ["compute", "T_multiply"]
    operator = cut(func)
    assert operator_blocks(func) == tir_blocks(operator) == ["pad_temp", "conv2d_nhwc"]
    assert [str(p.dtype) for p in func.params] == ["int8", "float32", "float32", "float32"]
    assert [tuple(p.shape) for p in operator.params] == [(1, 7, 7, 8), (3, 3, 8, 16), (1, 7, 7, 16)]


def test_the_weight_is_found_where_it_now_is() -> None:
    func = fused_function(residual_first())
    assert [int(i) for i in func.attrs["layout_free_buffers"]] == [2]
    assert [int(i) for i in cut(func).attrs["layout_free_buffers"]] == [1]


def test_a_constant_of_the_epilogue_leaves_no_trace() -> None:
    """Matmuls of two activations, with and without a constant bias."""
    shapes = (8, 16), (16, 24)
    with_bias, without = (
        fused_function(matmul(*shapes, epilogue, constant=False)) for epilogue in ("bias", "clip")
    )
    assert [int(i) for i in with_bias.attrs["layout_free_buffers"]] == [2]
    assert [int(i) for i in cut(with_bias).attrs["layout_free_buffers"]] == []
    tvm.ir.assert_structural_equal(cut(with_bias), cut(without))


def test_a_weight_that_may_change_is_another_operator() -> None:
    shapes = (8, 16), (16, 24)
    known, given = (cut(fused_function(matmul(*shapes, constant=c))) for c in (True, False))
    assert not tvm_ffi.structural_equal(known, given)


def test_winograd_is_cut_behind_its_transform_back() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 3, 64, 64), np.float32)

    def build(x, *bias):
        builder = relax.BlockBuilder.current()
        y = builder.emit(nn.conv2d(x, relax.const(weight), padding=1, **NHWC))
        return nn.relu(builder.emit(op.add(y, bias[0]))) if bias else y

    data, bias = (1, 28, 28, 64), (1, 1, 1, 64)
    func = single(build, data, bias)
    operator = cut(func)
    assert tir_blocks(func)[-2:] == ["T_add", "compute"]
    assert tir_blocks(operator) == tir_blocks(func)[:-2]
    assert tir_blocks(operator)[-1] == "conv2d_winograd"
    assert anchor_block(operator) == "winograd_product"
    assert [int(i) for i in operator.attrs["layout_free_buffers"]] == [1]
    tvm.ir.assert_structural_equal(operator, cut(single(build, data)))


# ---- what is kept ----


@pytest.mark.parametrize(
    "func",
    [
        single(nn.softmax, (6, 20)),
        single(lambda x: nn.relu(op.mean(x, [1, 2])), (1, 5, 5, 8)),
        single(lambda x: nn.max_pool2d(x, (3, 3), strides=(2, 2), layout="NHWC"), (1, 9, 9, 8)),
    ],
    ids=["softmax", "mean", "pooling"],
)
def test_what_is_no_product_stays_whole(func: tirx.PrimFunc) -> None:
    tvm.ir.assert_structural_equal(cut(func), func.without_attr("op_pattern"))
    assert operator_blocks(func) == tir_blocks(func)


def test_what_sums_nothing_up_has_no_operator() -> None:
    func = single(lambda x: nn.relu(op.permute_dims(x)), (6, 20))
    assert operator_function(func) is None
    assert anchor_block(func) is None
    assert operator_blocks(func) == []
    assert why_no_operator(func) == "no anchor operator: nothing in it is summed up"


def test_a_symbolic_function_has_none_for_another_reason() -> None:
    [func] = functions(symbolic_net())
    assert operator_function(func) is None
    assert "symbolic" in why_no_operator(func)


# ---- tasks ----


@pytest.fixture(scope="module")
def net() -> tvm.IRModule:
    """1x1 convolutions: two with relu, one with clip, one alone; and the rest of a network."""
    builder = relax.BlockBuilder()
    x, w = tensor("x", 1, 6, 6, 16), tensor("w", 1, 1, 16, 16)
    bias, dense = tensor("b", 1, 1, 1, 16), tensor("d", 16, 5)

    def conv(y):
        return builder.emit(nn.conv2d(y, w, **NHWC))

    with builder.function("main", [x, w, bias, dense], {"num_input": 1}):
        with builder.dataflow():
            y = x
            for _ in range(2):
                y = builder.emit(nn.relu(builder.emit(op.add(conv(y), bias))))
            y = builder.emit(op.clip(conv(y), 0, 6))
            y = builder.emit(op.mean(conv(y), [1, 2]))
            y = builder.emit(op.matmul(y, dense))
            out = builder.emit_output(op.concat([y, y], 0))
        builder.emit_func_output(out)
    return lower(builder.get(), TARGET)


def test_functions_that_differ_in_their_epilogue_alone_are_one_task(net) -> None:
    subgraphs = extract_tasks(net, TARGET)
    tasks = extract_tasks(net, TARGET, "operator")
    assert len([t for t in subgraphs if "1x1x16x16" in t.shape]) == 3
    [conv] = [t for t in tasks if "1x1x16x16" in t.shape]
    assert conv.weight == 4
    assert conv.granularity == "operator"
    assert conv.name.startswith("conv2d_nhwc of fused_conv2d")
    assert conv.shape == "x:1x6x6x16 f32, w:1x1x16x16 f32 -> 1x6x6x16 f32"
    assert conv.flops == 2 * 36 * 16 * 16
    assert sum(t.weight for t in tasks) == sum(t.weight for t in subgraphs)
    order = [t.weight * t.flops for t in tasks]
    assert order == sorted(order, reverse=True)


def test_functions_without_an_anchor_are_left_out(net) -> None:
    tasks = extract_tasks(net, TARGET, "operator")
    [concat] = [t for t in tasks if t.left_out]
    assert concat.name.startswith("concatenate")
    assert concat.left_out == "no anchor operator: nothing in it is summed up"
    assert not concat.is_measurable
    assert concat.granularity == "subgraph"
    anchored = sorted(t.name.split(" of ")[1].rstrip("12") for t in tasks if not t.left_out)
    assert anchored == ["fused_conv2d_add_relu", "matmul", "mean"]
    assert all(t.is_measurable and t.granularity == "operator" for t in tasks if not t.left_out)


def test_a_symbolic_task_is_left_out_with_its_own_reason() -> None:
    [task] = extract_tasks(symbolic_net(), TARGET, "operator")
    assert "symbolic" in task.left_out
    assert not task.is_measurable


def test_subgraphs_are_the_default(net) -> None:
    by_default = extract_tasks(net, TARGET)
    named = extract_tasks(net, TARGET, "subgraph")
    assert [(t.name, t.weight) for t in by_default] == [(t.name, t.weight) for t in named]
    assert {t.granularity for t in by_default} == {"subgraph"}


# ---- results ----


@st.composite
def products(draw: st.DrawFn) -> tuple[Drawn, Drawn]:
    """Draw a matmul or convolution with an epilogue, and alone."""
    channels, outputs = (draw(st.sampled_from([1, 3, 8, 16])) for _ in "io")
    if draw(st.booleans()):
        shapes = (draw(st.integers(1, 9)), 2 * channels), (2 * channels, outputs)
        types = draw(st.sampled_from([FLOAT, BYTES]))
        epilogue = "bias_residual_uint8" if types is BYTES else "bias_residual_relu"
        return matmul(*shapes, epilogue, types=types), matmul(*shapes, "none", types=types)
    nhwc, types = draw(st.booleans()), draw(st.sampled_from([FLOAT, BYTES]))
    kernel = [draw(st.integers(1, 3)) for _ in "hw"]
    size = [k + draw(st.integers(0, 6)) for k in kernel]
    data = (1, *size, channels) if nhwc else (1, channels, *size)
    weight = (*kernel, channels, outputs) if nhwc else (outputs, channels, *kernel)
    options = {
        "layout": "NHWC" if nhwc else "NCHW",
        "strides": draw(st.integers(1, 3)),
        "padding": [draw(st.integers(0, 2)) for _ in range(4)],
        "types": types,
    }
    epilogue = "bias_uint8" if types is BYTES else "bias_residual_relu"
    return (
        convolution(data, weight, epilogue, **options),
        convolution(data, weight, "none", **options),
    )


def computes_the_product(pair: tuple[Drawn, Drawn]) -> None:
    whole, alone = pair
    found = functions(fused(whole))
    hypothesis.assume(len(found) == 1)  # no other function pads or shifts data
    hypothesis.assume(anchor_block(found[0]) is not None)  # K = 1 is no reduction
    operator = cut(found[0])
    assert alone.numpy is not None
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0 if o.dtype == "uint8" else -4, 5, o.shape).astype(o.dtype)
              for o in alone.operands]  # fmt: skip
    expected = np.asarray(alone.numpy(*(a.astype("float64") for a in arrays)))
    out = operator.params[-1]
    result = tvm.runtime.tensor(np.full(expected.shape, 77).astype(str(out.dtype)))
    mod = tvm.IRModule({"main": operator.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, target=TARGET, pipeline="s_tir")
    built["main"](*map(tvm.runtime.tensor, arrays), result)
    assert_close(result.numpy(), expected.astype(str(out.dtype)))


COMPUTES = hypothesis.given(products())(computes_the_product)
SETTINGS = hypothesis.settings(
    deadline=None, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip


def test_an_operator_computes_the_product() -> None:
    hypothesis.settings(SETTINGS, max_examples=8)(COMPUTES)()


@pytest.mark.slow
def test_many_operators_compute_the_product() -> None:
    hypothesis.settings(SETTINGS, max_examples=300)(COMPUTES)()
