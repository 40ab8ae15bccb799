"""Zero padding of 8- and 16-bit data: fused into the producer, to the K granularity of the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir

from tvmopt.transform.k_granularity import missing_k
from tvmopt.transform.legalize import legalize_map
from tvmopt.transform.lower import lower
from tvmopt.transform.pad_early import PadEarly

op, nn = relax.op, relax.op.nn
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})
PAD = (1, 1, 1, 1)


def conv(x, w, padding=(0, 0, 0, 0), **settings):
    out = "float32" if str(x.ty.dtype) == "bfloat16" else "int32"
    return nn.conv2d(x, w, padding=padding, **{**LAYOUT, "out_dtype": out, **settings})


def weight(*shape, dtype="int8", seed=1):
    rng = np.random.default_rng(seed)
    if dtype == "bfloat16":
        return rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    return rng.integers(-128, 128, shape).astype(dtype)


def prim_funcs(mod):
    return [func for _, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]


def before_and_after(relax_main, assert_same, before, after, **inputs):
    """Assert that ``PadEarly`` rewrites ``before`` to ``after``."""
    assert_same(PadEarly()(relax_main(before, **inputs)), relax_main(after, **inputs))


W = weight(3, 3, 8, 16)


def test_an_input_is_padded(relax_main, assert_same):
    def after(emit, x):
        padded = emit(nn.pad(x, [0, 0, 1, 2, 3, 4, 0, 0]))
        return emit(conv(padded, relax.const(W), strides=(2, 2), dilation=(1, 2)))

    before_and_after(
        relax_main, assert_same,
        lambda emit, x: emit(
            conv(x, relax.const(W), (1, 3, 2, 4), strides=(2, 2), dilation=(1, 2))
        ),
        after, x=((1, 9, 9, 8), "uint8"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "channels", "padded_to"),
    [("uint8", 3, 4), ("int8", 5, 8), ("uint8", 18, 20), ("bfloat16", 3, 4), ("bfloat16", 5, 6)],
)
def test_channels_are_filled_up_to_whole_groups(
    relax_main, assert_same, dtype, channels, padded_to
):
    more = padded_to - channels
    w = weight(3, 3, channels, 16, dtype="bfloat16" if dtype == "bfloat16" else "int8")

    def after(emit, x):
        padded = emit(nn.pad(x, [0, 0, 1, 1, 1, 1, 0, more]))
        wider = emit(nn.pad(relax.const(w), [0, 0, 0, 0, 0, more, 0, 0]))
        return emit(conv(padded, wider))

    before_and_after(
        relax_main, assert_same,
        lambda emit, x: emit(conv(x, relax.const(w), PAD)),
        after, x=((1, 9, 9, channels), dtype),
    )  # fmt: skip


def quantised(emit, x):
    """The input stage of a quantized model: elementwise operators on a transposed image."""
    y = emit(op.permute_dims(x, [0, 2, 3, 1]))
    y = emit(op.round(emit(op.multiply(y, relax.const(np.float32(37.0))))))
    return emit(op.astype(emit(op.clip(y, 0, 255)), "uint8"))


def test_an_elementwise_producer_of_an_input_is_padded(relax_main, assert_same):
    w = weight(7, 7, 3, 16)

    def after(emit, x):
        padded = emit(nn.pad(quantised(emit, x), [0, 0, 3, 3, 3, 3, 0, 1]))
        return emit(conv(padded, emit(nn.pad(relax.const(w), [0] * 5 + [1, 0, 0]))))

    before_and_after(
        relax_main, assert_same,
        lambda emit, x: emit(conv(quantised(emit, x), relax.const(w), (3, 3, 3, 3))),
        after, x=((1, 3, 12, 12), "float32"),
    )  # fmt: skip


def of_a_convolution(emit, x):
    y = emit(conv(x, relax.const(weight(1, 1, 8, 8))))
    y = emit(op.astype(emit(op.clip(y, 0, 127)), "int8"))
    return emit(conv(y, relax.const(W), PAD))


LEFT_ALONE = {
    "a convolution's result": (of_a_convolution, "uint8"),
    "a pooled image": (
        lambda emit, x: emit(
            conv(emit(nn.max_pool2d(x, 2, layout="NHWC")), relax.const(W), PAD)
        ),
        "uint8",
    ),
    "nothing to pad": (lambda emit, x: emit(conv(x, relax.const(W))), "uint8"),
    "float32": (
        lambda emit, x: emit(
            nn.conv2d(x, relax.const(W.astype("float32")), padding=1, **LAYOUT)
        ),
        "float32",
    ),
    "groups": (
        lambda emit, x: emit(conv(x, relax.const(W[:, :, :4]), PAD, groups=2)), "uint8",
    ),
    "NCHW": (
        lambda emit, x: emit(
            nn.conv2d(x, relax.const(weight(4, 9, 3, 3)), padding=1, out_dtype="int32")
        ),
        "uint8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(relax_main, name):
    body, dtype = LEFT_ALONE[name]
    mod = relax_main(body, x=((1, 9, 9, 8), dtype))
    tvm.ir.assert_structural_equal(PadEarly()(mod), mod)


# ---- after lowering ----


def has_padding(func) -> bool:
    return "if_then_else" in func.script()


def test_no_kernel_of_its_own_pads_an_image(relax_main):
    """One kernel quantizes and pads the image; the convolution kernel has no bounds check."""
    w = weight(7, 7, 3, 16)
    mod = lower(
        relax_main(
            lambda emit, x: emit(conv(quantised(emit, x), relax.const(w), (3, 3, 3, 3))),
            x=((1, 3, 12, 12), "float32"),
        ),
        TARGET,
    )
    image, convolved = sorted(prim_funcs(mod), key=lambda func: "T.init()" in func.script())
    assert has_padding(image) and "nearbyint" in image.script()
    assert "T.init()" in convolved.script() and not has_padding(convolved)
    assert len(prim_funcs(mod)) == 2


def test_a_convolution_behind_another_pads_in_its_own_kernel(relax_main):
    mod = lower(relax_main(of_a_convolution, x=((1, 9, 9, 8), "uint8")), TARGET)
    first, second = sorted(prim_funcs(mod), key=has_padding)
    assert all("T.init()" in func.script() for func in (first, second))
    assert not has_padding(first) and has_padding(second)


# ---- K granularity ----


@pytest.mark.parametrize(
    ("dtype", "depth", "missing"),
    [("uint8", 7, 1), ("int8", 8, 0), ("int8", 9, 3), ("bfloat16", 7, 1), ("bfloat16", 8, 0),
     ("float32", 7, 0), ("int32", 7, 0), ("float16", 7, 0)],
)  # fmt: skip
def test_missing_k(dtype, depth, missing):
    operand = relax.Var("x", relax.TensorType((5, depth), dtype))
    assert missing_k(dtype, operand, 1) == missing


def lowered_depths(mod) -> list[int]:
    """Return the innermost loop extent of every reduction after legalization."""
    legal = relax.transform.LegalizeOps(legalize_map())(mod)
    found = []

    def visit(block):
        if block.init is not None:
            found.append(int(block.iter_vars[-1].dom.extent))

    for func in prim_funcs(legal):
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return found


def run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(lower(mod, TARGET), TARGET), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize(("dtype", "padded"), [("uint8", 8), ("bfloat16", 8), ("float32", 7)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_k_of_a_matmul_is_padded(relax_main, dtype, padded, batch):
    other = {"uint8": "int8"}.get(dtype, dtype)
    out = "int32" if dtype == "uint8" else "float32"
    shapes = {"x": ((*batch, 5, 7), dtype), "w": ((*batch, 7, 16), other)}
    mod = relax_main(lambda emit, x, w: emit(op.matmul(x, w, out_dtype=out)), **shapes)
    assert lowered_depths(mod) == [padded]
    numpy_type = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256 if dtype == "uint8" else 8, shapes["x"][0]).astype(numpy_type)
    w = rng.integers(-128 if dtype == "uint8" else -8, 8, shapes["w"][0])
    w = w.astype(np.int8 if dtype == "uint8" else numpy_type)
    wide = np.int64 if dtype == "uint8" else np.float64
    np.testing.assert_array_equal(run(mod, x, w), x.astype(wide) @ w.astype(wide))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("channels", [3, 5, 18])
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_results_of_ragged_channels(relax_main, dtype, channels, behind):
    """The data is padded early, or in the convolution kernel when it is ``behind`` a reduction."""
    w = weight(3, 3, channels, 16, dtype="bfloat16" if dtype == "bfloat16" else "int8")
    rng = np.random.default_rng(0)
    shape = (1, 6, 7, channels)
    x = rng.integers(0, 200, shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def body(emit, x):
        y = emit(nn.max_pool2d(x, 1, layout="NHWC")) if behind else x
        return emit(conv(y, relax.const(w), PAD))

    mod = relax_main(body, x=(shape, dtype))
    wide = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(1, 2))
    expected = np.einsum("nyxcij,ijco->nyxo", windows, w.astype(np.float64))
    got = run(mod, x)
    if dtype == "uint8":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4 * np.abs(expected).max())
    group = 2 if dtype == "bfloat16" else 4
    assert max(lowered_depths(PadEarly()(mod))) == -(-channels // group) * group
