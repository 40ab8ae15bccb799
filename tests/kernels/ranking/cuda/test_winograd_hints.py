"""The ranking of Winograd transforms on CUDA, and of the batched GEMM between them."""

from __future__ import annotations

import json

import pytest
from tvm import tirx

from tests.kernels.cuda.functions import computed
from tests.kernels.cuda.winograd import Problem
from tvmopt.device.cuda import CudaArch
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.winograd.config import WinogradTransformConfig
from tvmopt.kernels.cuda.winograd.space import transform_of, transform_work
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.ranked import FEATURES, Ranked
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.kernels.workload import Refusal
from tvmopt.transform.winograd_gpu import winograd_product

H200, T4 = GPUS["nvidia-h200"], GPUS["nvidia-t4"]
F = "float32"
TEMPLATES = ("gpu_winograd_data", "gpu_winograd_out")


def winograd_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[Ranked[WinogradTransformConfig]]:
    transform = transform_of(func)
    return [] if isinstance(transform, Refusal) else transform.configs(arch)


def functions(problem: Problem) -> list[tuple[str, tirx.PrimFunc]]:
    data, _, out = problem.functions()
    return list(zip(TEMPLATES, (data, out), strict=True))


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("arch", [H200, T4], ids=lambda gpu: gpu.name)
def test_hints_are_of_the_template_distinct_and_survive_json(arch, m) -> None:
    for template, func in functions(Problem((2, 28, 28, 32), 48, m)):
        policy = policy_of(func, arch)
        hints = policy.emit_config(100)
        assert policy.reason is None and {h.template for h in hints} == {template}
        assert len({h.config_id for h in hints}) == len(hints) >= 6
        for ranked in policy.ranked:
            again = WinogradTransformConfig.from_dict(json.loads(json.dumps(ranked.hint.to_dict())))
            assert again == ranked.hint
            assert len(ranked.features) == FEATURES and ranked.cycles > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("shape", "outputs"), [((1, 5, 7, 17), 19), ((3, 12, 24, 20), 18), ((1, 1, 1, 16), 16)]
)
def test_all_that_is_proposed_applies(shape, outputs) -> None:
    for _, func in functions(Problem(shape, outputs, 4)):
        found = winograd_hints(func, H200)
        assert found
        for ranked in found:
            emit(func, ranked.hint)


def test_odd_channels_have_no_vectors() -> None:
    for _, func in functions(Problem((1, 8, 8, 17), 19)):
        assert {r.hint.vector_elements for r in winograd_hints(func, H200)} == {1}


def test_many_tiles_go_by_long_vectors_and_few_by_short_ones() -> None:
    for shape, vectors in (((128, 28, 28, 128), {4}), ((1, 14, 14, 64), {1, 2})):
        for _, func in functions(Problem(shape, shape[3])):
            assert winograd_hints(func, H200)[0].hint.vector_elements in vectors


def test_other_functions_have_none() -> None:
    _, product, _ = Problem((1, 8, 8, 16), 16).functions()
    assert winograd_hints(product, H200) == []


@pytest.mark.parametrize(("m", "there", "back"), [(2, 32.0, 24.0), (4, 192.0, 140.0)])
def test_the_transforms_work_is_that_of_their_matrices(m, there, back) -> None:
    assert transform_work(MATRICES[m].bt) == there
    assert transform_work(MATRICES[m].at) == back


@pytest.mark.parametrize(
    ("size", "arch", "template", "tflops"),
    [
        ((36, 6272, 128, 128), H200, "hopper_gemm", (40, 60)),
        ((36, 512, 512, 512), H200, "hopper_gemm", (50, 80)),
        # Its short reduction is bound by memory: three TF32 products pay less.
        ((16, 25088, 64, 96), H200, "simt_matmul", (25, 45)),
        ((36, 512, 512, 512), T4, "simt_matmul", (3, 8)),
    ],
)
def test_large_batched_gemms(size, arch, template, tflops) -> None:
    """Float32 on tensor cores of Hopper as three products of TF32 parts, else on CUDA cores."""
    points, tiles, channels, outputs = size
    operands = ((points, tiles, channels), F), ((points, channels, outputs), F)
    func = computed(winograd_product, *operands)
    policy = policy_of(func, arch)
    best = policy.ranked[0].hint
    assert best.template == template and best.split_k == 1
    assert getattr(best, "parts", 1) == (2 if template == "hopper_gemm" else 1)
    seconds = 1e-9 * policy.cycles / arch.clock_ghz
    least, most = tflops
    assert least < 2e-12 * points * tiles * channels * outputs / seconds < most
