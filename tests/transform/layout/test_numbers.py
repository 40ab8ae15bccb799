"""Converted graphs compute what the original computes: single operators, then random graphs."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tvmopt.kernels.response_norm import ResponseNorm
from tvmopt.transform.anchors import anchors
from tvmopt.transform.layout import convert_layout_with_report
from tvmopt.transform.response_norm import response_norm_call

LAYOUTS = ("NHWC", "HWNC", "NCHW4c", "NCHW8c")
nn = relax.op.nn


def conv(emit, x, outputs=8, kernel=1, groups=1, seed=0, **attrs):
    channels = int(x.ty.shape[1])
    rng = np.random.default_rng(seed)
    shape = (outputs, channels // groups, kernel, kernel)
    weight = rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
    return emit(nn.conv2d(x, relax.const(weight), groups=groups, **attrs))


def module(body, shape):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, x))
        builder.emit_func_output(out)
    return builder.get()


def agree(run, mod, layout, shape, skip=(), moved=None):
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    result = convert_layout_with_report(
        mod, {"nn.conv2d": layout}, skip_layers=skip, auto_skip=layout.startswith("NCHW")
    )
    want = run(mod, x)
    np.testing.assert_allclose(run(result.mod, x)[0], want[0], rtol=1e-4, atol=1e-4)
    assert moved is None or result.count == moved, result.changes
    return result


def _const(array):
    return relax.const(np.asarray(array, np.float32))


def _quantised(emit, x):
    scale, zero = relax.const(np.float32(0.1)), relax.const(np.int8(3))
    scales = relax.const(np.linspace(0.05, 0.1, 8, dtype=np.float32))
    zeros = relax.const(np.zeros(8, np.int8))
    q = emit(relax.op.quantize(x, scale, zero, 1, "int8"))
    x = emit(relax.op.dequantize(q, scale, zero, 1))
    q = emit(relax.op.quantize(x, scales, zeros, 1, "int8"))
    return emit(relax.op.dequantize(q, scales, zeros, 1))


def _shuffle(emit, x):
    n, c, h, w = map(int, x.ty.shape)
    x = emit(relax.op.reshape(x, (n, 2, c // 2, h, w)))
    x = emit(relax.op.permute_dims(x, [0, 2, 1, 3, 4]))
    return emit(relax.op.reshape(x, (n, c, h, w)))


# Operator, and its supported layouts: only the input and the output are converted.
FOLLOWS = {
    "clip": (lambda e, x: e(relax.op.clip(x, 0, 1)), LAYOUTS),
    "cast": (lambda e, x: e(relax.op.astype(e(relax.op.round(x)), "int32")), LAYOUTS),
    "row": (lambda e, x: e(relax.op.add(x, _const(np.arange(5)))), LAYOUTS),
    "scalar": (lambda e, x: e(relax.op.multiply(_const([[[[2.0]]]]), x)), LAYOUTS),
    "mask": (
        lambda e, x: e(relax.op.multiply(x, e(relax.op.max(x, [1], keepdims=True)))), LAYOUTS,
    ),
    "where": (
        lambda e, x: e(relax.op.where(e(relax.op.greater(x, _const(0))), x, _const([1.0]))),
        LAYOUTS,
    ),
    "prelu": (lambda e, x: e(nn.prelu(x, _const(np.arange(8) / 8), 1)), LAYOUTS),
    "lower rank": (
        lambda e, x: e(relax.op.add(x, e(relax.op.squeeze(e(relax.op.max(x, [0])), None)))),
        LAYOUTS,
    ),
    "max pool": (
        lambda e, x: e(nn.max_pool2d(x, (3, 2), (2, 1), (1, 0, 1, 1), ceil_mode=True)), LAYOUTS,
    ),
    "average pool": (
        lambda e, x: e(nn.avg_pool2d(x, (3, 3), (2, 2), 1, count_include_pad=True)), LAYOUTS,
    ),
    "adaptive pool": (lambda e, x: e(nn.adaptive_avg_pool2d(x, (2, 3))), LAYOUTS),
    "resize": (
        lambda e, x: e(relax.op.image.resize2d(x, (8, 10), method="linear")),
        ("NHWC", "NCHW4c", "NCHW8c"),
    ),
    "pad": (lambda e, x: e(nn.pad(x, [0, 0, 8, 0, 1, 0, 0, 2], pad_value=1.0)), LAYOUTS),
    "reflect": (lambda e, x: e(nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], "reflect")), LAYOUTS),
    "slice": (
        lambda e, x: e(relax.op.strided_slice(x, [1, 3], [0, -1], [2**31 - 1, 0], [1, -1])), (),
    ),
    "slice of half": (
        lambda e, x: e(relax.op.strided_slice(x, [1, 2], [4, 1], [8, 2**31 - 1], [1, 2])),
        LAYOUTS,
    ),
    "softmax": (lambda e, x: e(nn.softmax(x, 1)), ("NHWC", "HWNC")),
    "layer norm": (
        lambda e, x: e(nn.layer_norm(x, _const(np.ones(8)), _const(np.arange(8)), [1])),
        ("NHWC", "HWNC"),
    ),
    "instance norm": (
        lambda e, x: e(nn.instance_norm(x, _const(np.arange(8)), _const(np.ones(8)), 1, [2, 3])),
        ("NHWC", "HWNC"),
    ),
    "response norm": (
        lambda e, x: e(response_norm_call(ResponseNorm(1, 3, 0.5, 0.75, 1.0), x)),
        ("NHWC", "HWNC", "NCHW8c"),
    ),
    "argmax": (lambda e, x: e(relax.op.argmax(x, 1, keepdims=True)), LAYOUTS),
    "variance": (lambda e, x: e(relax.op.variance(x, [1, 3])), LAYOUTS),
    "stack": (lambda e, x: e(relax.op.sum(e(relax.op.stack([x, x], 0)), [0])), LAYOUTS),
    "broadcast": (
        lambda e, x: e(relax.op.broadcast_to(e(relax.op.max(x, [1], True)), (2, 8, 6, 5))),
        LAYOUTS,
    ),
    "quantise": (_quantised, ("NHWC", "HWNC")),
    "shuffle": (_shuffle, ("NHWC", "HWNC")),
    "space": (lambda e, x: e(relax.op.reshape(x, (2, 8, 30))), LAYOUTS),
    "rows": (lambda e, x: e(relax.op.cumsum(x, 1)), ()),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FOLLOWS)
def test_operator(run, name):
    body, quiet = FOLLOWS[name]

    def graph(emit, x):
        y = body(emit, conv(emit, x))
        # If the shape allows, a convolution follows, so that no conversion back is needed.
        return conv(emit, y, seed=2) if len(y.ty.shape) == 4 and y.ty.dtype == "float32" else y

    shape = (2, 8, 6, 5)
    mod = module(graph, shape)
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    want = run(mod, x)[0]
    for layout in LAYOUTS:
        result = convert_layout_with_report(mod, {"nn.conv2d": layout}, auto_skip="c" in layout)
        if layout == "HWNC" or (layout == "NCHW4c" and layout in quiet):
            got = run(result.mod, x)[0]
            np.testing.assert_allclose(np.float32(got), np.float32(want), rtol=1e-4, atol=1e-4)
        assert (result.count <= 2) == (layout in quiet), (layout, result.changes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [1, 2, 16])
def test_convolutions(run, layout, groups):
    shape = (2, 16, 9, 8)
    attrs = {"strides": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)}
    mod = module(lambda e, x: conv(e, x, 16, 3, groups, **attrs), shape)
    result = agree(run, mod, layout, shape, moved=2)
    assert result.skipped == {}


def test_transposed_and_one_dimensional(run):
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3), np.float32)
    lines = np.random.default_rng(0).standard_normal((6, 4, 3), np.float32)

    def body(emit, x):
        y = emit(nn.conv2d_transpose(x, relax.const(weight), (2, 3), (1, 0), (1, 2)))
        y = emit(relax.op.mean(y, [2]))
        return emit(nn.conv1d(y, relax.const(lines), padding=1))

    mod = module(body, (2, 8, 4, 5))
    result = convert_layout_with_report(mod, {"nn.conv2d_transpose": "NHWC", "nn.conv1d": "NWC"})
    assert result.count == 2
    x = np.random.default_rng(1).standard_normal((2, 8, 4, 5), np.float32)
    np.testing.assert_allclose(run(result.mod, x)[0], run(mod, x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW8c"])
def test_weights_of_any_type_are_folded(run, dtype, layout):
    """Integers accumulate in int32, also unsigned data with signed weights."""
    numpy_type = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    weight = np.random.default_rng(0).integers(-3, 4, (8, 8, 3, 3))
    kind = "int8" if dtype == "uint8" else dtype
    weight = weight.astype(getattr(ml_dtypes, kind, None) or np.dtype(kind))
    out_dtype = "int32" if "int" in dtype else "float32"
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 5, 5), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(nn.conv2d(x, relax.const(weight), out_dtype=out_dtype))
            out = builder.emit_output(nn.relu(y))
        builder.emit_func_output(out)
    mod = builder.get()
    result = convert_layout_with_report(mod, {"nn.conv2d": layout})
    assert result.count == 2
    low = 0 if dtype == "uint8" else -5
    data = np.random.default_rng(1).integers(low, 6, (1, 8, 5, 5)).astype(numpy_type)
    np.testing.assert_array_equal(run(result.mod, data)[0], run(mod, data)[0])


@st.composite
def graphs(draw):
    """Draw a body of ``module`` with up to five convolutions, and their number."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["conv", "conv", "depthwise", "residual", "scale", "pool", "concat", "split",
                     "pad", "bias", "shuffle", "upsample"]
                ),
                st.sampled_from([3, 8, 16]),
                st.sampled_from([1, 3]),
            ),
            min_size=2,
            max_size=6,
        )
    )  # fmt: skip
    head = draw(st.sampled_from(["mean", "flatten", "none"]))

    def body(emit, x):
        y = conv(emit, x, 16, 3, padding=1)
        for seed, (step, outputs, kernel) in enumerate(steps):
            channels = int(y.ty.shape[1])
            if step == "conv":
                y = conv(emit, y, outputs, kernel, seed=seed, padding=kernel // 2)
            elif step == "depthwise":
                y = conv(emit, y, channels, kernel, channels, seed, padding=kernel // 2)
            elif step == "residual":
                y = emit(relax.op.add(y, conv(emit, y, channels, 1, seed=seed)))
            elif step == "scale":
                m = emit(relax.op.mean(y, [2, 3], keepdims=True))
                y = emit(relax.op.multiply(y, emit(relax.op.sigmoid(conv(emit, m, channels)))))
            elif step == "pool":
                y = emit(nn.max_pool2d(y, (2, 2), (1, 1)))
            elif step == "concat":
                y = emit(relax.op.concat([y, conv(emit, y, outputs, 1, seed=seed)], 1))
            elif step == "split" and channels > 1:
                parts = emit(relax.op.split(y, [channels // 2], 1))
                one, two = (emit(relax.TupleGetItem(parts, k)) for k in (0, 1))
                y = emit(relax.op.concat([two, emit(relax.op.tanh(one))], 1))
            elif step == "pad":
                y = emit(nn.pad(y, [0, 0, 0, 0, 1, 0, 0, 1]))
            elif step == "bias":
                y = emit(nn.relu(emit(relax.op.add(y, _const(np.ones((channels, 1, 1)))))))
            elif step == "shuffle" and channels % 2 == 0:
                y = _shuffle(emit, y)
            elif step == "upsample":
                size = (int(y.ty.shape[2]) + 2, int(y.ty.shape[3]) * 2)
                y = emit(relax.op.image.resize2d(y, size, method="nearest_neighbor"))
        if head == "none":
            return y
        if head == "mean":
            y = emit(relax.op.mean(y, [2, 3], keepdims=True))
        size = int(np.prod([int(d) for d in y.ty.shape][1:]))
        y = emit(relax.op.reshape(y, (int(y.ty.shape[0]), size)))
        dense = np.random.default_rng(9).standard_normal((size, 3), np.float32) / np.sqrt(size)
        return emit(relax.op.matmul(y, relax.const(dense)))

    return body


@given(
    graphs(),
    st.sampled_from(LAYOUTS),
    st.sets(st.integers(0, 2), max_size=2),
    st.sampled_from([1, 2]),
)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_random_graphs(run, body, layout, skip, batch):
    shape = (batch, 3, 7, 6)
    mod = module(body, shape)
    layers = {a.index for a in anchors(mod)}
    result = agree(run, mod, layout, shape, sorted(skip & layers))
    assert skip & layers <= set(result.skipped)
    for anchor, before in zip(anchors(result.mod), anchors(mod), strict=True):
        assert anchor.op == before.op
        if anchor.op == "nn.conv2d":
            kept = anchor.index in result.skipped
            assert anchor.call.attrs.data_layout == ("NCHW" if kept else layout)
