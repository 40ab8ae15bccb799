"""Winograd against direct convolution, and the choice between them."""

from __future__ import annotations

import dataclasses

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, s_tir, tirx

from tests.kernels.cpu.drawn_products import conv2d_numpy
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.intrinsics import instructions_used
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.winograd_matrices import MATRICES, WINOGRAD_ATTR
from tvmopt.transform.anchors import anchors
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation, PlanWinograd
from tvmopt.transform.winograd import choose_tile, cpu_rule, winograd_weight

SPEC = resolve_target("host", 2)
RNG = np.random.default_rng(0)


def module(shape, kernel, dtype="float32", constant=True, layout="NHWC", **settings):
    """Build a convolution with relu."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    weight = RNG.standard_normal(kernel).astype("float32") / 10
    w = relax.Var("w", relax.TensorType(kernel, dtype))
    given = relax.const(weight) if dtype == "float32" else relax.const(weight.astype(dtype), dtype)
    kernel_layout = "HWIO" if layout == "NHWC" else "OIHW"
    with builder.function("main", [x] if constant else [x, w]):
        with builder.dataflow():
            y = builder.emit(
                relax.op.nn.conv2d(
                    x, given if constant else w,
                    data_layout=layout, kernel_layout=kernel_layout, **settings,
                )
            )  # fmt: skip
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    return builder.get(), weight


def tiles(mod: tvm.IRModule) -> list[int]:
    """Return the tile sizes of the Winograd convolutions in a lowered module."""
    found: list[int] = []

    def visit(block: s_tir.SBlock) -> None:
        if WINOGRAD_ATTR in block.annotations:
            found.append(int(block.annotations[WINOGRAD_ATTR]))

    for _, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return found


@pytest.mark.parametrize("m", MATRICES)
def test_a_tile_is_the_convolution_of_its_inputs(m) -> None:
    data, weight = RNG.standard_normal((m + 2, m + 2)), RNG.standard_normal((3, 3))
    bt, g, at = (np.array(x) for x in (MATRICES[m].bt, MATRICES[m].g, MATRICES[m].at))
    tile = at @ ((g @ weight @ g.T) * (bt @ data @ bt.T)) @ at.T
    plain = conv2d_numpy(
        data[None, :, :, None], weight[:, :, None, None], (1, 1), (0, 0, 0, 0), (1, 1), 1
    )
    np.testing.assert_allclose(tile, plain[0, :, :, 0], rtol=1e-12)


@pytest.mark.parametrize("m", MATRICES)
def test_the_weight_keeps_its_type(m) -> None:
    weight = RNG.standard_normal((3, 3, 5, 7)).astype("float32")
    got = winograd_weight(weight, m)
    assert got.dtype == np.float32
    assert got.shape == (m + 2, m + 2, 5, 7)
    g = np.array(MATRICES[m].g)
    np.testing.assert_allclose(got[:, :, 3, 2], g @ weight[:, :, 3, 2] @ g.T, rtol=1e-6)


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    size=st.tuples(st.integers(12, 30), st.integers(12, 30)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    channels=st.sampled_from([32, 48, 64]),
    outputs=st.sampled_from([32, 48, 64]),
    batch=st.sampled_from([1, 2]),
)
def test_a_lowered_convolution_computes_the_same(size, padding, channels, outputs, batch) -> None:
    mod, weight = module((batch, *size, channels), (3, 3, channels, outputs), padding=padding)
    lowered = lower(mod, SPEC.to_tvm())
    assert tiles(lowered)
    scheduled, _ = schedule_module(lowered, SPEC.arch())
    machine = relax.VirtualMachine(tvm.compile(scheduled, SPEC.to_tvm(opt_level=0)), tvm.cpu())
    x = RNG.standard_normal((batch, *size, channels)).astype("float32")
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    plain = conv2d_numpy(x, weight.astype("float64"), (1, 1), padding, (1, 1), 1)
    np.testing.assert_allclose(got, np.maximum(plain, 0), atol=2e-5 * np.abs(plain).max())


OTHERS = {
    "stride": {"strides": 2},
    "dilation": {"dilation": 2},
    "kernel": {"kernel": (5, 5, 32, 32)},
    "pointwise": {"kernel": (1, 1, 32, 32)},
    "groups": {"groups": 2, "kernel": (3, 3, 16, 32)},
    "ragged": {"kernel": (3, 3, 32, 20)},
    "unknown weight": {"constant": False},
    "half": {"dtype": "float16"},
    "channels first": {"layout": "NCHW", "shape": (1, 32, 28, 28), "kernel": (32, 32, 3, 3)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_as_they_are(name) -> None:
    settings = {"shape": (1, 28, 28, 32), "kernel": (3, 3, 32, 32), "padding": 1} | OTHERS[name]
    mod, _ = module(**settings)
    assert tiles(lower(mod, SPEC.to_tvm())) == []


def test_winograd_can_be_disabled_and_is_cpu_only() -> None:
    mod, _ = module((1, 28, 28, 32), (3, 3, 32, 32), padding=1)
    assert tiles(lower(mod, SPEC.to_tvm())) == [4]
    assert tiles(lower(mod, SPEC.to_tvm(), winograd=False)) == []
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    assert tiles(lower(mod, cuda)) == []


def test_the_epilogue_is_fused() -> None:
    mod, _ = module((1, 28, 28, 32), (3, 3, 32, 32), padding=1)
    lowered = lower(mod, SPEC.to_tvm())
    assert sum(isinstance(f, tirx.PrimFunc) for _, f in lowered.functions_items()) == 1


@pytest.mark.parametrize(
    ("positions", "channels", "outputs", "m"),
    [
        ((1, 56, 56), 64, 64, 4),  # many tiles: the most arithmetic is saved
        ((1, 14, 14), 256, 256, 2),  # fewer tiles: traffic of the transformed weight counts
        (
            (1, 7, 7),
            512,
            512,
            0,
        ),  # few tiles: reading the weight dominates
        ((1, 1, 1), 512, 512, 0),  # one pixel: no arithmetic is saved
        ((1, 56, 56), 3, 64, 0),  # no whole vectors
    ],
)
def test_the_tile_fits_the_convolution(positions, channels, outputs, m) -> None:
    assert choose_tile(positions, channels, outputs) == m


def narrow_module(channels=64, outputs=64, size=28):
    """Build a convolution in bfloat16 that accumulates in float32; return its weight as float32."""
    kernel = (3, 3, channels, outputs)
    mod, weight = module(
        (1, size, size, channels), kernel, "bfloat16", padding=1, out_dtype="float32"
    )
    return mod, weight.astype(ml_dtypes.bfloat16).astype("float32")


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("znver4", [2]),  # vdpbf16ps
        ("cooperlake", [2]),
        ("sapphirerapids", []),  # AMX, whose tiles are faster than the transforms
        ("skylake-avx512", []),  # no instruction
    ],
)
def test_bfloat16_needs_a_dot_product_of_vectors(cpu, expected) -> None:
    mod, _ = narrow_module()
    assert tiles(lower(mod, resolve_target(cpu, 2).to_tvm())) == expected


def test_bfloat16_has_small_tiles_only() -> None:
    target = resolve_target("znver4", 2).to_tvm()
    [anchor] = anchors(narrow_module()[0])
    assert cpu_rule(target).sizes_of(anchor.call) == (2,)
    [anchor] = anchors(module((1, 28, 28, 64), (3, 3, 64, 64), padding=1)[0])
    assert cpu_rule(target).sizes_of(anchor.call) == (2, 4)
    assert choose_tile((1, 28, 28), 64, 64, "bfloat16") == 2
    assert choose_tile((1, 28, 28), 64, 24, "bfloat16") == 0  # half a vector
    assert choose_tile((1, 7, 7), 512, 512, "bfloat16") == 0


def test_a_function_in_bfloat16_uses_the_instruction() -> None:
    spec = resolve_target("znver4", 2)
    scheduled, _ = schedule_module(lower(narrow_module()[0], spec.to_tvm()), spec.arch())
    [func] = [f for var, f in scheduled.functions_items() if "winograd" in var.name_hint]
    assert instructions_used(func) == ("vdpbf16ps",)


@pytest.mark.parametrize(("channels", "outputs", "size"), [(64, 64, 28), (48, 32, 27)])
def test_bfloat16_is_nearly_as_exact_as_direct(channels, outputs, size) -> None:
    """The transformed operands are rounded, too: about twice the error of a rounded result."""
    mod, weight = narrow_module(channels, outputs, size)
    target = SPEC.to_tvm(opt_level=0)
    rule = dataclasses.replace(cpu_rule(target), sizes={"bfloat16": (2,)})
    planned = PlanWinograd({0: Implementation("", "winograd2")}, rule)(mod)
    lowered = lower(planned, target)
    assert tiles(lowered) == [2]
    scheduled, _ = schedule_module(lowered, SPEC.arch())
    machine = relax.VirtualMachine(tvm.compile(scheduled, target), tvm.cpu())
    x = RNG.standard_normal((1, size, size, channels)).astype(ml_dtypes.bfloat16)
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert got.dtype == np.float32
    plain = np.maximum(
        conv2d_numpy(x.astype("float64"), weight.astype("float64"), (1, 1), (1,) * 4, (1, 1), 1), 0
    )
    error = np.sqrt(np.square(got - plain).mean() / np.square(plain).mean())
    assert error < 2 * 2**-8
