"""Legalisation of int8 GEMMs and convolutions of few channels for the Hopper kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cuda.hopper.sources import H200, conv_config, gemm_config
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem, few_channels_problem
from tvmopt.kernels.cuda.hopper.match import Match, match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import conv_configs
from tvmopt.transform.legalize_hopper import hopper_legalize_map
from tvmopt.transform.lower import lower_passes

OP = relax.op


def _module(x, w, body):
    """Build ``body`` of an input and a constant weight."""
    rng = np.random.default_rng(0)
    shape, dtype = w
    value = rng.integers(-3, 4, shape).astype(dtype)
    builder = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(*x))
    with builder.function("main", [var]):
        with builder.dataflow():
            result = builder.emit_output(body(var, relax.const(value)))
        builder.emit_func_output(result)
    return builder.get(), value


def _lowered(mod):
    target = H200.to_tvm()
    with target, tvm.transform.PassContext(opt_level=3):
        passes = lower_passes(None, target, hopper_legalize_map())
        return tvm.transform.Sequential(passes)(mod)


def _problems(mod):
    found = [match(f) for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return [m.problem for m in found if isinstance(m, Match)]


def _conv(x, w, **fields):
    fields = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC", **fields}
    return OP.nn.conv2d(x, w, **fields)


def test_int8_gemm():
    mod, _ = _module(
        ((4, 32, 64), "int8"), ((64, 48), "int8"), lambda x, w: OP.matmul(x, w, out_dtype="int32")
    )
    [problem] = _problems(_lowered(mod))
    assert isinstance(problem, GemmProblem)
    assert (problem.m, problem.n, problem.k, problem.trans_b) == (128, 48, 64, True)


def test_int8_convolution():
    mod, _ = _module(
        ((2, 14, 14, 32), "int8"),
        ((3, 3, 32, 48), "int8"),
        lambda x, w: _conv(x, w, padding=(1, 1, 1, 1), out_dtype="int32"),
    )
    [problem] = _problems(_lowered(mod))
    assert isinstance(problem, ConvProblem) and problem.weight == "OHWI"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(7, 2, 3), (3, 1, 1), (3, 2, 1), (5, 1, 0)]
)
def test_the_packed_form_computes_the_convolution(kernel, stride, padding):
    """The functions around the kernel, and the one whose place it takes, run on the CPU."""
    mod, _ = _module(
        ((2, 13, 17, 3), "float16"),
        ((kernel, kernel, 3, 8), "float16"),
        lambda x, w: _conv(x, w, strides=(stride, stride), padding=(padding,) * 4),
    )
    lowered = _lowered(mod)
    [problem] = _problems(lowered)
    assert isinstance(problem, FewChannelsProblem)
    assert conv_configs(problem, H200)
    config = gemm_config(consumer_warpgroups=1, tile_n=64, stages=2, epilogue_buffers=1)
    assert isinstance(conv(problem, conv_config(config)), tirx.PrimFunc)
    x = np.random.default_rng(1).integers(-3, 4, (2, 13, 17, 3)).astype("float16")
    results = []
    for one in (lowered, mod):
        built = tvm.compile(one, target="llvm")
        vm = relax.VirtualMachine(built, tvm.cpu())
        results.append(vm["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_array_equal(results[0], results[1])


def test_the_packed_form_is_for_few_channels():
    common = ((7, 7), (2, 2), (3, 3, 3, 3), "float16", "float16")
    found = few_channels_problem(1, 224, 224, 3, 64, *common)
    assert (found.window, found.kernel_rows, found.column_stride) == (32, 7, 8)
    assert found.width % 8 == 0 and found.out_size == (112, 112)
    assert few_channels_problem(1, 224, 224, 8, 64, *common) is None
    assert few_channels_problem(1, 224, 224, 3, 64, (11, 11), *common[1:]) is not None
    assert few_channels_problem(1, 224, 224, 3, 64, (17, 17), *common[1:]) is None
    assert few_channels_problem(1, 2, 2, 3, 64, (7, 7), (2, 2), (0, 0, 0, 0), *common[3:]) is None
