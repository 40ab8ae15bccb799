"""An operator that broadcasts the result of a matmul gets its own kernel; other fusion stays."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.transform.broadcast_apart import BroadcastApart
from tvmopt.transform.lower import lower, lower_passes

op, nn = relax.op, relax.op.nn
GPU = resolve_target("nvidia-h200")
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
IMAGE = ((2, 6, 7, 24), "float32")


def weight(*shape):
    return relax.const(np.random.default_rng(0).standard_normal(shape, np.float32))


def conv(emit, x, channels, out):
    return emit(nn.conv2d(x, weight(1, 1, channels, out), **LAYOUT))


def gated(emit, x):
    """A squeeze-excite block of MobileNetV3."""
    x = conv(emit, x, 24, 24)
    pooled = emit(op.mean(x, axis=[1, 2], keepdims=True))
    gate = emit(nn.relu(conv(emit, pooled, 24, 24)))
    return emit(nn.relu(emit(op.multiply(x, emit(op.clip(gate, 0.0, 1.0))))))


def gated_apart(emit, x):
    """A gate of a tensor that no convolution produces: fusion is unchanged."""
    gate = emit(op.sigmoid(conv(emit, emit(op.mean(x, axis=[1, 2], keepdims=True)), 24, 24)))
    return emit(op.multiply(gate, x))


def biased(emit, x):
    return emit(nn.relu(emit(op.add(conv(emit, x, 24, 24), weight(1, 1, 1, 24)))))


def residual(emit, x):
    return emit(op.add(conv(emit, x, 24, 24), x))


def enlarged_by_a_product(emit, x):
    """The larger matmul has no other reader, so its kernel ends with it."""
    small = conv(emit, emit(op.mean(x, axis=[1, 2], keepdims=True)), 24, 24)
    return emit(op.add(conv(emit, x, 24, 24), small))


def until_fused():
    """Return the passes before ours, which FuseOps follows after passes that affect no anchor."""
    passes = lower_passes(target=GPU.to_tvm())
    names = [p.info.name for p in passes]
    at = names.index("BroadcastApart")
    assert names[at : at + 2] == ["BroadcastApart", "FuseOps"]
    return passes[:at]


def on_cpu(mod, x):
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("network", [biased, residual, enlarged_by_a_product])
def test_nothing_else_is_changed(relax_main, assert_same, network):
    with GPU.to_tvm():
        mod = tvm.transform.Sequential(until_fused())(relax_main(network, x=IMAGE))
    assert_same(BroadcastApart()(mod), mod)


@pytest.mark.parametrize("network", [gated, gated_apart])
def test_the_broadcasting_operator_has_a_kernel_of_its_own(relax_main, network):
    lowered = lower(relax_main(network, x=IMAGE), GPU.to_tvm())
    shapes = {}
    for _, func in lowered.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            hint = schedule_function(func, GPU.gpu).hint
            shapes[tuple(int(e) for e in func.params[-1].shape)] = hint.template
            assert hint.template != "gpu_fallback"
    assert "elementwise" in shapes[(2, 6, 7, 24)]
    assert (2, 1, 1, 24) in shapes


@pytest.mark.parametrize("network", [gated, gated_apart])
def test_results_are_equal(relax_main, network):
    mod = relax_main(network, x=IMAGE)
    x = np.random.default_rng(1).standard_normal(IMAGE[0], np.float32)
    wanted, got = (on_cpu(m, x) for m in (mod, lower(mod, GPU.to_tvm())))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
