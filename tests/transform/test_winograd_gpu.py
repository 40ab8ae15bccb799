"""Winograd on a GPU: which convolutions become three kernels, and their results."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.emulator.cuda import run
from tests.kernels.cuda import on_cpu, serial
from tests.kernels.cuda.winograd import Problem
from tvmopt.device.cuda import CudaArch, probe
from tvmopt.device.gpus import GPUS, gpu_of_target
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.emit import emit
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.layer_functions import lower_by_layer
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation
from tvmopt.transform.winograd_gpu_model import choose_gpu_tile, why_not_tiles

from .test_winograd import OTHERS, module, tiles

H200, T4, A100 = GPUS["nvidia-h200"], GPUS["nvidia-t4"], GPUS["nvidia-a100"]
LARGE = Problem((16, 28, 28, 128), 128)


def names(mod: tvm.IRModule) -> list[str]:
    """Return names of the TensorIR functions, in alphabetical order."""
    return sorted(v.name_hint for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))


def calls(mod: tvm.IRModule) -> list[str]:
    """Return functions that ``main`` calls, in order."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [b.value.args[0].name_hint for b in bindings if isinstance(b.value, relax.Call)]


@pytest.mark.parametrize("arch", [H200, T4], ids=lambda gpu: gpu.name)
def test_a_convolution_becomes_three_functions_with_the_epilogue_in_the_third(arch) -> None:
    lowered = lower(LARGE.module(), arch.to_tvm())
    data, gemm, out = calls(lowered)
    assert data.startswith("winograd_data") and gemm.startswith("winograd_product")
    assert out.startswith("fused_winograd_out_add") and "relu" in out
    assert len(names(lowered)) == 3
    shapes = [[int(e) for e in p.shape] for p in lowered[gemm].params]
    tiles_ = 16 * 7 * 7
    assert shapes == [[36, tiles_, 128], [36, 128, 128], [36, tiles_, 128]]


def test_lowering_by_layer_has_the_same_functions() -> None:
    by_layer = lower_by_layer(LARGE.module(), H200.to_tvm(), {})
    assert calls(by_layer.mod) == calls(lower(LARGE.module(), H200.to_tvm()))
    assert by_layer.layer_of == {calls(by_layer.mod)[-1]: 0}


def test_the_weight_is_transformed_when_it_is_lowered() -> None:
    lowered = lower(LARGE.module(), H200.to_tvm())
    [call] = [
        b.value for block in lowered["main"].body.blocks for b in block.bindings
        if "winograd_product" in str(b.value.args[0])
    ]  # fmt: skip
    np.testing.assert_array_equal(call.args[1][1].value.numpy(), LARGE.transformed_weight())


def test_winograd_can_be_disabled() -> None:
    lowered = lower(LARGE.module(), H200.to_tvm(), winograd=False)
    assert len(names(lowered)) == 1 and "winograd" not in names(lowered)[0]


@pytest.mark.parametrize(
    ("algorithm", "points"), [("direct", 0), ("winograd2", 16), ("winograd4", 36)]
)
def test_a_plan_chooses_the_algorithm(algorithm, points) -> None:
    lowered = lower(LARGE.module(), H200.to_tvm(), plan={0: Implementation("", algorithm)})
    assert tiles(lowered) == []  # no CPU variant
    found = [n for n in names(lowered) if n.startswith("winograd_product")]
    assert len(found) == bool(points)
    if points:
        assert int(lowered[found[0]].params[0].shape[0]) == points


def test_equal_layers_share_functions_and_epilogues_stay_apart() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 28, 28, 128), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for seed in range(3):
                rng = np.random.default_rng(seed)
                weight = relax.const(rng.standard_normal((3, 3, 128, 128)).astype("float32"))
                y = builder.emit(
                    relax.op.nn.conv2d(
                        y, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO"
                    )
                )
                y = builder.emit(relax.op.nn.relu(y))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    lowered = lower(builder.get(), H200.to_tvm())
    assert len(calls(lowered)) == 9  # nothing is fused across convolutions
    assert len(set(calls(lowered))) == len(names(lowered)) == 3


@pytest.mark.parametrize("name", [*OTHERS, "few positions"])
def test_others_stay_as_they_are(name) -> None:
    settings = {"shape": (64, 28, 28, 32), "kernel": (3, 3, 32, 32), "padding": 1}
    others = {
        "few positions": {"shape": (1, 28, 28, 32)},
        "channels first": {"layout": "NCHW", "shape": (64, 32, 28, 28), "kernel": (32, 32, 3, 3)},
        "ragged": {"kernel": (3, 3, 32, 3)},
    }
    mod, _ = module(**(settings | OTHERS.get(name, {}) | others.get(name, {})))
    assert not any("winograd" in n for n in names(lower(mod, H200.to_tvm())))


def _chosen(batch: int, size: int, channels: int, outputs: int, arch=H200) -> int:
    image = batch * size * size * channels
    return choose_gpu_tile((batch, size, size), channels, outputs, image, arch)


@pytest.mark.parametrize(("size", "channels"), [(56, 64), (28, 128), (14, 256), (7, 512)])
def test_large_batches_take_it_and_single_images_do_not(size, channels) -> None:
    assert _chosen(128, size, channels, channels) == 4
    assert _chosen(1, size, channels, channels) == 0


@pytest.mark.parametrize(
    ("batch", "size", "channels", "outputs"),
    [(1, 8, 16, 16), (1, 1, 512, 512), (4, 28, 3, 64), (128, 28, 8, 8), (128, 7, 64, 1)],
)
def test_small_products_stay_direct(batch, size, channels, outputs) -> None:
    assert _chosen(batch, size, channels, outputs) == 0


def test_what_32_bit_indices_cannot_reach_stays_direct() -> None:
    positions, image = (512, 224, 224), 512 * 224 * 224 * 64
    assert _chosen(512, 224, 64, 64) == 0
    assert "32-bit indices" in why_not_tiles(4, positions, 64, 64, image, H200)
    assert why_not_tiles(4, (64, 224, 224), 64, 64, 64 * 224 * 224 * 64, H200) == ""


def test_what_takes_too_much_memory_stays_direct() -> None:
    small = dataclasses.replace(H200, memory_bytes=2**30)
    positions, image = (128, 28, 28), 128 * 28 * 28 * 128
    assert "bytes between the kernels" in why_not_tiles(4, positions, 128, 128, image, small)
    assert _chosen(128, 28, 128, 128, small) == 0


def test_a_target_names_a_gpu_of_its_capability() -> None:
    for gpu in GPUS.values():
        assert gpu_of_target(gpu.to_tvm()).sm == gpu.sm
    assert gpu_of_target(H200.to_tvm()) == H200
    for arch, generation in (("sm_120", "Blackwell"), ("sm_61", "older than Volta")):
        with pytest.raises(ConfigError, match=f"7.0 to 9.0 .* {arch} is of .*{generation}"):
            gpu_of_target(tvm.target.Target({"kind": "cuda", "arch": arch}))


def _run(problem: Problem) -> np.ndarray:
    """Run the top-1 kernels on the CPU."""
    data, gemm, out = problem.functions()
    image, residual = problem.inputs()

    def scheduled(func: tirx.PrimFunc, template: str):
        ranked = policy_of(func, H200).ranked
        first = next(r.hint for r in ranked if r.hint.template == template)
        return emit(func, first)

    made = scheduled(data, "gpu_winograd_data")
    tiles_ = serial.run(serial.serial(made.mod["main"]), [image])
    made = scheduled(gemm, "simt_matmul")
    transformed = on_cpu.run(made, [tiles_, problem.transformed_weight()])
    back = serial.serial(scheduled(out, "gpu_winograd_out").mod["main"])
    given = {a.shape: a for a in (transformed, problem.bias, residual)}
    return serial.run(back, [given[tuple(int(e) for e in p.shape)] for p in back.params[:-1]])


@pytest.mark.sample(1)
@pytest.mark.parametrize("m", [2, 4])
def test_the_kernels_compute_the_convolution(m) -> None:
    problem = Problem((2, 13, 10, 24), 20, m, (1, 0, 2, 1))
    wanted = problem.wanted()
    found = _run(problem)
    # Rounding error of reductions over 9 x 24 terms, amplified by the transforms.
    bound = {2: 3e-6, 4: 2e-5}[m] * np.abs(wanted).max()
    assert found.shape == problem.result and np.abs(found - wanted).max() < bound


def test_every_function_has_a_kernel_made_for_it() -> None:
    # In float32 the two GEMM families are predicted to be within 4 % of each other on Hopper.
    for arch, gemms in ((H200, ("hopper_gemm", "simt_matmul")), (A100, ("simt_matmul",))):
        lowered = lower(LARGE.module(), arch.to_tvm())
        _, served = schedule_module(lowered, arch)
        [gemm] = set(served.values()) - {"gpu_winograd_data", "gpu_winograd_out"}
        assert gemm in gemms and len(set(served.values())) == 3


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request) -> CudaArch | None:
    """Return the GPU, or None to emulate one."""
    if request.param == "emulated":
        return None
    if not tvm.runtime.cuda(0).exist:
        pytest.skip("this machine has no GPU")
    return probe()


@pytest.mark.sample(2)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("shape", [(2, 13, 10, 24), (3, 28, 31, 64), (1, 1, 5, 17)])
def test_the_top_1_kernels_compute_the_convolution(shape, m, gpu) -> None:
    problem = Problem(shape, 20, m)
    functions = dict(zip(("data", "gemm", "out"), problem.functions(), strict=True))
    kernels = {}
    for name, func in functions.items():
        made = schedule_function(func, gpu or H200)
        assert made.hint is not None, made.rule
        kernels[name] = made.func
    built = gpu and build_kernels(kernels, gpu)
    image, residual = problem.inputs()

    def call(name: str, *inputs: np.ndarray) -> np.ndarray:
        shape = [int(e) for e in functions[name].params[-1].shape]
        empty = np.full(shape, np.nan, "float32")
        if gpu is None:
            return run(kernels[name], inputs, [empty], H200)[0]
        sent = [tvm.runtime.tensor(array, tvm.runtime.cuda(0)) for array in (*inputs, empty)]
        built[name](*sent)
        return sent[-1].numpy()

    transformed = call("gemm", call("data", image), problem.transformed_weight())
    given = {each.shape: each for each in (transformed, problem.bias, residual)}
    wanted = [given[tuple(int(e) for e in p.shape)] for p in functions["out"].params[:-1]]
    found = call("out", *wanted)
    exact = problem.wanted()
    assert np.abs(found - exact).max() < {2: 3e-6, 4: 2e-5}[m] * np.abs(exact).max()
