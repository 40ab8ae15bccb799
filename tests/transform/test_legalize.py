"""Convolutions that TVM does not legalise: against NumPy on the CPU, and compiled for CUDA."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.transform.conv2d import sum_dtype
from tvmopt.transform.layout import convert_layout
from tvmopt.transform.legalize import legalize_map
from tvmopt.transform.lower import lower, lower_passes

RNG = np.random.default_rng(0)
H200 = {
    "kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152, "thread_warp_size": 32, "registers_per_block": 65536,
}  # fmt: skip


def numpy_conv2d(x, w, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    """Convolve NCHW with OIHW; accumulate in float64, or int64 for integers."""
    wide = np.int64 if x.dtype.kind in "iu" else np.float64
    x, w = x.astype(wide), w.astype(wide)
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, inputs, kh, kw = w.shape
    out_h = (x.shape[2] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    out_w = (x.shape[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((x.shape[0], outputs, out_h, out_w), wide)
    each = outputs // groups
    for o in range(outputs):
        first = o // each * inputs
        for a in range(kh):
            for b in range(kw):
                window = x[:, first : first + inputs, a * dilation[0] :, b * dilation[1] :]
                window = window[:, :, :: strides[0], :: strides[1]][:, :, :out_h, :out_w]
                out[:, o] += np.einsum("nihw,i->nhw", window, w[o, :, a, b])
    return out


def module(shape, weight, dtype="float32", **attrs):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), **attrs))
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    return builder.get()


def run(mod, *arrays):
    target = tvm.target.Target.from_device("cpu")
    machine = relax.VirtualMachine(tvm.compile(lower(mod, target), target), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


CASES = {
    "plain": ((2, 16, 7, 6), (24, 16, 3, 3), {}),
    "all": (
        (2, 16, 9, 8), (8, 16, 3, 2),
        {"strides": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)},
    ),
    "groups": ((1, 16, 5, 5), (16, 8, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "depthwise": ((1, 16, 6, 5), (16, 1, 3, 3), {"groups": 16, "strides": (2, 2)}),
    "point": ((1, 8, 1, 1), (8, 8, 1, 1), {}),
}  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW8c", "HWNC", "NHWC"])
@pytest.mark.parametrize("case", CASES)
def test_against_numpy(case, layout):
    shape, kernel, attrs = CASES[case]
    x = RNG.standard_normal(shape, np.float32)
    w = RNG.standard_normal(kernel, np.float32)
    mod = convert_layout(module(shape, w, **attrs), {"nn.conv2d": layout})
    want = np.maximum(numpy_conv2d(x, w, **attrs), 0)
    np.testing.assert_allclose(run(mod, x), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("data", "weight", "out"), [("uint8", "int8", "int32"), ("int8", "int8", "int32")]
)
@pytest.mark.parametrize("layout", ["NCHW8c", "HWNC"])
def test_integers_are_exact(data, weight, out, layout):
    shape = (1, 16, 5, 5)
    x = RNG.integers(np.iinfo(data).min, np.iinfo(data).max + 1, shape).astype(data)
    w = RNG.integers(-128, 128, (8, 16, 3, 3)).astype(weight)
    mod = convert_layout(module(shape, w, data, out_dtype=out), {"nn.conv2d": layout})
    np.testing.assert_array_equal(run(mod, x), np.maximum(numpy_conv2d(x, w), 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW8c", "HWNC", "NHWC"])
def test_halves_are_summed_in_float32(dtype, layout):
    """4096 terms of 1 + 1/128: a 16-bit accumulator would stop growing long before the end."""
    numpy_type = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.ones((1, 256, 4, 4), numpy_type)
    w = np.full((8, 256, 4, 4), 1 + 1 / 128, numpy_type)
    mod = convert_layout(module(x.shape, w, dtype), {"nn.conv2d": layout})
    got = run(mod, x)
    assert got.dtype == numpy_type
    np.testing.assert_allclose(got.astype(np.float32), 4096 * (1 + 1 / 128), rtol=4e-3)


def test_sum_dtype():
    assert sum_dtype("float16", "float16") == "float32"
    assert sum_dtype("int8", "int32") == "int32"
    assert sum_dtype("uint8", "float32") == "int32"
    assert sum_dtype("float32", "float32") == "float32"
    assert sum_dtype("float64", "float64") == "float64"


def test_what_tvm_legalises_is_left_to_it():
    w = RNG.standard_normal((4, 3, 3, 3), np.float32)
    mod = module((1, 3, 6, 6), w)
    legalized = relax.transform.LegalizeOps(legalize_map())(mod)
    tvm.ir.assert_structural_equal(legalized, relax.transform.LegalizeOps()(mod))


def cuda_kernels(dtype, out_dtype, shape=(2, 32, 14, 14), outputs=64):
    """Compile a convolution in HWNC for an H200; return input, weight and executable."""
    from tvm.s_tir import dlight

    numpy_type = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = RNG.integers(-4, 5, shape).astype(numpy_type)
    w = RNG.integers(-4, 5, (outputs, shape[1], 3, 3)).astype(numpy_type)
    mod = module(shape, w, dtype, padding=(1, 1, 1, 1), out_dtype=out_dtype)
    mod = convert_layout(mod, {"nn.conv2d": "HWNC"})
    target = tvm.target.Target(H200, host="llvm")
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.transform.Sequential(lower_passes())(mod)
        scheduled = dlight.ApplyDefaultSchedule(*rules)(lowered)
        return x, w, tvm.compile(scheduled, target)


def _cuda_source(module):
    if module.kind == "cuda":
        return module.inspect_source()
    return next((s for m in module.imports if (s := _cuda_source(m))), "")


@pytest.mark.sample(2)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc compiles the kernels")
@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("float32", "float32"), ("float16", "float16"), ("int8", "int32")]
)
def test_hwnc_compiles_for_cuda(dtype, out_dtype):
    from tvm.support import nvcc

    _, _, executable = cuda_kernels(dtype, out_dtype)
    source = _cuda_source(executable.mod)
    assert "conv2d" in source
    with tvm.target.Target(H200):
        assert len(nvcc.compile_cuda(source, target_format="cubin", compiler="nvcc")) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("float32", "float32"), ("float16", "float16"), ("float16", "float32"), ("int8", "int32")],
)
def test_hwnc_on_a_gpu(dtype, out_dtype, monkeypatch):
    """Operands are small integers, so that every dtype is exact."""
    if shutil.which("nvcc"):
        monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    x, w, executable = cuda_kernels(dtype, out_dtype)
    device = tvm.cuda(0)
    machine = relax.VirtualMachine(executable, device)
    got = machine["main"](tvm.runtime.tensor(x, device)).numpy()
    want = np.maximum(numpy_conv2d(x, w, padding=(1, 1, 1, 1)), 0)
    tolerance = 0 if dtype == "int8" or out_dtype == "float32" else 1e-3
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance)


def test_reshape_of_unit_axes_has_no_division(relax_main):
    def body(emit, x):
        return emit(relax.op.reshape(emit(relax.op.squeeze(x, [1])), (6, 1, 5)))

    mod = relax.transform.LegalizeOps(legalize_map())(relax_main(body, x=((6, 1, 1, 5), "float32")))
    text = mod.script()
    assert text.count("T_reshape") > 1 and "//" not in text and "%" not in text


@pytest.mark.parametrize("slopes", [(1,), (4,)])
def test_prelu_fuses_with_a_convolution(slopes, relax_main):
    weight = RNG.standard_normal((3, 3, 8, 4)).astype("float32")
    slope = RNG.uniform(0.1, 0.5, slopes).astype("float32")

    def body(emit, x):
        y = emit(
            relax.op.nn.conv2d(x, relax.const(weight), data_layout="NHWC", kernel_layout="HWIO")
        )
        return emit(relax.op.nn.prelu(y, relax.const(slope), axis=3 if len(slope) > 1 else 1))

    mod = relax_main(body, x=((1, 6, 7, 8), "float32"))
    target = tvm.target.Target.from_device("cpu")
    names = [v.name_hint for v, f in lower(mod, target).functions_items() if v.name_hint != "main"]
    assert len(names) == 1 and "prelu" in names[0]
    x = RNG.standard_normal((1, 6, 7, 8)).astype("float32")
    x[0, 0, 0, 0] = np.nan
    y = numpy_conv2d(x.transpose(0, 3, 1, 2), weight.transpose(3, 2, 0, 1)).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(run(mod, x), np.where(y > 0, y, y * slope), rtol=1e-4, atol=1e-4)
