"""MergeIntoGemv: which kernels become one, their numbers, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.emulator.cuda import run
from tests.transform.gemv_graphs import K, names, network, packed
from tvmopt.device.target import resolve_target
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.transform.legalize import legalize_map
from tvmopt.transform.lower import lower, lower_passes
from tvmopt.transform.merge_into_gemv import MergeIntoGemv

op = relax.op
CPU = tvm.target.Target({"kind": "llvm"})
H200 = resolve_target("nvidia-h200")


def on_gpu(mod, device="nvidia-h200", **how):
    """Names of the kernels, in order."""
    return names(lower(mod, resolve_target(device).to_tvm(), **how))


def kinds(kernels):
    """What each kernel computes: N(orm), M(atmul), S(igmoid)."""
    parts = {"N": "rms_norm", "M": "matmul", "S": "sigmoid"}
    return ["".join(k for k, part in parts.items() if part in name) for name in kernels]


def on_cpu(mod, x):
    machine = relax.VirtualMachine(tvm.compile(lower(mod, CPU), CPU), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def emulated(mod, x):
    """Run the kernels of a GPU one after the other."""
    lowered = lower(mod, H200.to_tvm())
    values = {lowered["main"].params[0]: x}
    for block in lowered["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call):
                values[binding.var] = values[call]
                continue
            func = lowered[call.args[0]]
            kernel = emit_kernel(func, DefaultPolicy(func, H200.arch()).ranked[0].hint)
            given = [
                values[a] if isinstance(a, relax.Var) else a.value.numpy() for a in call.args[1]
            ]
            shape = tuple(int(extent) for extent in call.ty.shape)
            empty = np.full(shape, np.nan, str(call.ty.dtype))
            [values[binding.var]] = run(kernel, given, [empty], H200.arch())
    return values[lowered["main"].body.body]


@pytest.mark.sample(2)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_norm_gate_and_up_become_one_kernel_with_their_numbers(relax_main, rows, dtype) -> None:
    mod = network(relax_main, rows, dtype)
    assert kinds(on_gpu(mod)) == ["NMS", "M"]
    x = np.random.default_rng(3).standard_normal((1, rows, K)).astype(dtype)
    want = on_cpu(mod, x)
    np.testing.assert_allclose(emulated(mod, x), want, atol=4e-3 * np.abs(want).max())


def test_rms_norm_alone_becomes_part_of_each_gemv_that_reads_it(relax_main) -> None:
    mod = network(relax_main, gated=False)
    assert kinds(on_gpu(mod)) == ["NM"]
    x = np.random.default_rng(4).standard_normal((1, 1, K)).astype("float16")
    want = on_cpu(mod, x)
    np.testing.assert_allclose(emulated(mod, x), want, atol=4e-3 * np.abs(want).max())


def test_several_gemvs_of_different_weights_each_compute_the_norm(relax_main) -> None:
    mod = network(relax_main, gated=False, weights=[packed(0, 64), packed(1, 64, block=64)])
    assert kinds(on_gpu(mod)) == ["NM", "NM", ""]  # the last concatenates


@pytest.mark.parametrize(
    ("change", "kernels"),
    [
        ({"read_again": True}, ["N", "MS", "M"]),  # the network returns the norm
        ({"weights": [packed(0, 64), packed(1, 64, bits=8)]}, ["N", "M", "MS", "M"]),
        ({"weights": [packed(0, 64, zero=None), packed(1, 64, zero=None)]}, ["N", "M", "S", "M"]),
        ({"rows": 9}, ["N", "M", "MS", "M"]),
    ],
    ids=["norm is read", "int8", "zero points of each block", "many rows"],
)
def test_others_stay(relax_main, change, kernels) -> None:
    assert sorted(kinds(on_gpu(network(relax_main, **change)))) == sorted(kernels)


def test_a_gate_that_others_read_has_a_kernel(relax_main) -> None:
    assert kinds(on_gpu(network(relax_main, gate_is_read=True))) == ["NM", "NMS", "M"]


def test_a_norm_stays_where_no_configuration_of_the_gemv_fits(relax_main) -> None:
    """Of 16 rows, no tile has enough warps."""
    few = [packed(0, 16)]
    assert kinds(on_gpu(network(relax_main, gated=False, weights=few))) == ["N", "M"]


@pytest.mark.parametrize("device", ["nvidia-t4", "host"])
def test_devices_without_the_kernel_do_not_merge(relax_main, device) -> None:
    assert not {"NMS", "NM"} & set(kinds(on_gpu(network(relax_main), device)))


def test_schedules_of_tvm_get_no_merged_functions(relax_main) -> None:
    assert not {"NMS", "NM"} & set(kinds(on_gpu(network(relax_main), winograd=False)))


@pytest.mark.parametrize("takes", [True, False])
def test_only_what_a_family_takes_is_merged(relax_main, takes) -> None:
    seen = []

    def decide(func):
        seen.append(func)
        return takes

    mod = fused(relax_main)
    made = MergeIntoGemv(decide)(mod)
    assert seen and all(isinstance(func, tvm.tirx.PrimFunc) for func in seen)
    tvm.relax.analysis.well_formed(made)
    calls = [b.value for block in made["main"].body.blocks for b in block.bindings]
    assert len(calls) == (1 if takes else 3)


def fused(relax_main):
    """Three kernels before FuseTIR: RMSNorm, an int4 matmul, and SiLU of slices of its result."""
    passes = lower_passes(target=H200.to_tvm(), legalize=legalize_map(None))
    names = [str(one.info.name) for one in passes]
    until = passes[: names.index("MergeIntoGemv")]
    with H200.to_tvm(), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(until)(network(relax_main, down=False))


def test_layers_that_are_the_same_share_a_kernel(relax_main) -> None:
    found = on_gpu(network(relax_main, layers=2))
    assert kinds(found) == ["NMS", "M"] * 2 and found[:2] == found[2:]
