"""TF32 in networks: what is marked, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvmopt.device.gpus import GPUS
from tvmopt.device.target import resolve_target
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allows_tf32
from tvmopt.stages.module_files import read_module, write_module
from tvmopt.transform.allow_tf32 import module_allowing_tf32, module_allows_tf32
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

RNG = np.random.default_rng(0)


def network() -> tvm.IRModule:
    """Return convolution, ReLU, mean, layer norm, matmul and softmax in float32."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((8, 64, 28, 28), "float32"))
    op = relax.op

    def weight(*shape: int) -> relax.Expr:
        return relax.const(RNG.standard_normal(shape).astype("float32"))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, weight(64, 64, 3, 3), padding=1))
            y = builder.emit(op.mean(builder.emit(op.nn.relu(y)), [2, 3]))
            y = builder.emit(op.nn.layer_norm(y, weight(64), weight(64), [-1]))
            y = builder.emit(op.matmul(y, weight(64, 512)))
            result = builder.emit_output(op.nn.softmax(y))
        builder.emit_func_output(result)
    return builder.get()


def functions(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    found = mod.functions_items()
    return {v.name_hint: f for v, f in found if isinstance(f, tirx.PrimFunc)}


def lowered(target: str, allow_tf32: bool) -> dict[str, tirx.PrimFunc]:
    mod = convert_module(network(), layout="NHWC", allow_tf32=allow_tf32).mod
    return functions(lower(mod, resolve_target(target).to_tvm()))


@pytest.mark.parametrize(
    ("target", "convolution"), [("h200", "hopper_conv"), ("a100", "mma_matmul")]
)
def test_matmuls_and_convolutions_alone_are_marked(target, convolution) -> None:
    found = lowered(target, True)
    marked = {name for name, func in found.items() if allows_tf32(func)}
    assert len(marked) == 2 and all("conv2d" in n or "matmul" in n for n in marked)
    assert not any("winograd" in name for name in found)
    [name] = [n for n in marked if "conv2d" in n]
    policy = policy_of(found[name], resolve_target(target).gpu)
    assert policy.ranked[0].hint.template == convolution


@pytest.mark.parametrize("target", ["h200", "a100"])
def test_exact_float32_has_no_mark(target) -> None:
    assert not any(map(allows_tf32, lowered(target, False).values()))


def test_a_cpu_ignores_the_permission() -> None:
    exact, allowed = (lowered("skylake-avx512", a) for a in (False, True))
    assert not any(map(allows_tf32, allowed.values()))
    assert exact.keys() == allowed.keys()


def test_weights_on_hopper_are_transposed_when_they_are_lowered() -> None:
    found = lowered("h200", True)
    [conv] = [f for n, f in found.items() if "conv2d" in n]
    [matmul] = [f for n, f in found.items() if "matmul" in n]
    assert [int(e) for e in conv.params[1].shape] == [64, 3, 3, 64]  # OHWI
    assert [int(e) for e in matmul.params[1].shape] == [512, 64]
    assert not any("transposed" in name for name in found)


def test_half_precision_layers_are_not_marked() -> None:
    mod = convert_module(network(), dtype="float16", layout="NHWC", allow_tf32=True).mod
    found = functions(lower(mod, GPUS["nvidia-h200"].to_tvm()))
    assert not any(map(allows_tf32, found.values()))


def test_the_permission_survives_the_files_of_a_module(tmp_path) -> None:
    for allowed in (True, False):
        mod = convert_module(network(), allow_tf32=allowed).mod
        write_module(tmp_path, mod)
        assert module_allows_tf32(read_module(tmp_path)) == allowed
    assert not module_allows_tf32(network())
    assert module_allows_tf32(module_allowing_tf32(network()))
