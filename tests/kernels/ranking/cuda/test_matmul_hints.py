"""GEMM configurations on GPUs: they fit, they can be emitted, and the ranking is sensible."""

from __future__ import annotations

import json

import pytest
from tvm.s_tir import Schedule

from tests.kernels.cuda.products import Case, Conv
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.common.gemm_form import GemmForm, normalise
from tvmopt.kernels.cuda.common.matmul_problem import matmul_problem, resident_blocks
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.mma.family import MmaMatmul
from tvmopt.kernels.cuda.mma.space import mma_hints, shared_bytes
from tvmopt.kernels.cuda.simt.family import SimtMatmul
from tvmopt.kernels.cuda.simt.space import simt_matmul_hints
from tvmopt.kernels.cuda.tensor_core_policy import TensorCorePolicy, get_tensorized_func_and_tags

H200, T4, A100 = GPUS["nvidia-h200"], GPUS["nvidia-t4"], GPUS["nvidia-a100"]
LARGE = Case("nt", 4096, 4096, 4096, "float16")


def gemm(case: Case | Conv) -> GemmForm:
    found = normalise(case.func())
    assert isinstance(found, GemmForm)
    return found


@pytest.mark.parametrize("arch", [H200, A100, T4], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "case",
    [Case("nn", 1, 7, 3), Case("nt", 33, 1000, 48), Case("nn", 1024, 1024, 1024)],
    ids=str,
)
def test_first_choices_of_simt_schedule(case, arch) -> None:
    ranked = simt_matmul_hints(gemm(case), arch)
    assert ranked
    assert [r.cycles for r in ranked] == sorted(r.cycles for r in ranked)
    for one in ranked[:3]:
        assert isinstance(SimtMatmul().emit(case.func(), one.hint), Schedule)


@pytest.mark.sample(3)
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "case",
    [
        Case("nt", 1, 1000, 16, "float16"),
        Case("nn", 1000, 1000, 1001, "int8", "int32"),
        Case("tn", 512, 256, 4096, "bfloat16", batch=2),
        Conv("NHWC", 2, 14, 64, 64, 3, 1, 1, dtype="float16", bias=True),
        Conv("NHWC", 2, 28, 3, 64, 7, 2, 3, dtype="float16"),
    ],
    ids=str,
)
def test_first_choices_on_tensor_cores_schedule(case, arch) -> None:
    ranked = mma_hints(gemm(case), arch)
    assert ranked
    for one in ranked[:3]:
        assert isinstance(MmaMatmul().emit(case.func(), one.hint), Schedule)


def test_stages_are_given_up_before_tiles() -> None:
    """With less shared memory, K blocks stay deep and stages are fewer."""
    problem = matmul_problem(gemm(LARGE))
    stages = []
    for arch in (GPUS["nvidia-rtx-3090"], H200):
        hints = [r.hint for r in mma_hints(gemm(LARGE), arch)]
        assert all(shared_bytes(problem, hint) <= arch.smem_bytes for hint in hints)
        deep = [h for h in hints if h.tile == (128, 128) and h.k_block == 64]
        stages.append(max(h.stages for h in deep))
    assert stages == [2, 5]


def test_older_gpus_have_none_on_tensor_cores() -> None:
    assert mma_hints(gemm(LARGE), T4) == []


def test_long_reductions_of_few_tiles_are_split() -> None:
    assert simt_matmul_hints(gemm(Case("nn", 256, 256, 16384)), H200)[0].hint.split_k > 1
    assert simt_matmul_hints(gemm(Case("nn", 4096, 4096, 4096)), H200)[0].hint.split_k == 1
    assert mma_hints(gemm(Case("nt", 128, 128, 16384, "float16")), H200)[0].hint.split_k > 1


def test_a_large_product_gets_large_tiles() -> None:
    rows, columns = mma_hints(gemm(LARGE), H200)[0].hint.tile
    assert rows * columns >= 128 * 128
    worst = mma_hints(gemm(LARGE), H200)[-1]
    assert worst.cycles > 2 * mma_hints(gemm(LARGE), H200)[0].cycles


def test_only_what_tvm_can_copy_asynchronously_is() -> None:
    assert all(r.hint.async_copy for r in mma_hints(gemm(LARGE), H200) if r.hint.stages > 1)
    stem = Conv("NHWC", 2, 28, 3, 64, 7, 2, 3, dtype="float16")
    stems = [r.hint for r in mma_hints(gemm(stem), H200)]
    assert not any(h.async_copy for h in stems if not any(h.packs))
    bytes_along_columns = Case("nn", 256, 256, 256, "int8", "int32")
    ranked = mma_hints(gemm(bytes_along_columns), H200)
    assert all(r.hint.packs == (False, True) for r in ranked if r.hint.async_copy)


def test_factors_that_lie_unaligned_may_be_packed() -> None:
    assert not any(any(r.hint.packs) for r in mma_hints(gemm(LARGE), H200))
    odd = mma_hints(gemm(Case("nt", 2049, 2051, 2047, "float16")), H200)
    assert {r.hint.packs for r in odd} == {(False, False), (True, True)}
    assert odd[0].hint.packs == (True, True) and odd[0].hint.async_copy
    small = mma_hints(gemm(Case("nt", 33, 35, 37, "float16")), H200)
    assert small[0].hint.packs == (False, False)
    one = Case("nn", 512, 1000, 333, "float16")
    assert {r.hint.packs for r in mma_hints(gemm(one), H200)} == {(False, False), (True, False)}


def test_occupancy() -> None:
    assert resident_blocks(H200, 256, 128, 16 * 1024) == 2
    assert resident_blocks(H200, 256, 129, 16 * 1024) == 1
    assert resident_blocks(H200, 128, 32, 0) == 16
    assert resident_blocks(H200, 128, 32, 100 * 1024) == 2
    assert resident_blocks(H200, 128, 32, 228 * 1024) == 0


def test_policy_takes_the_words_of_the_proposal() -> None:
    conv = Conv("NHWC", 2, 14, 64, 64, 3, 1, 1, dtype="float16", bias=True).func()
    func, tags = get_tensorized_func_and_tags(conv, H200.to_tvm())
    assert tags == {"tensorcore_config": [1, 2], "pipeline_stage": 4, "use_async_copy": 1}
    policy = TensorCorePolicy(func=func, arch=H200, tags=tags)
    assert policy.reason is None
    configs = policy.emit_config(20)
    assert len(configs) == 20 and len({c.config_id for c in configs}) == 20
    assert [c.config_id for c in configs] == [
        c.config_id for c in TensorCorePolicy(conv, H200, tags).emit_config(20)
    ]
    again = MmaConfig.from_dict(json.loads(json.dumps(configs[0].to_dict())))
    assert again == configs[0]
    assert isinstance(MmaMatmul().emit(func, configs[0]), Schedule)


def test_policy_honours_its_tags() -> None:
    tags = {"pipeline_stage": 2, "use_async_copy": 0}
    configs = TensorCorePolicy(LARGE.func(), H200, tags).emit_config(20)
    assert all(c.stages <= 2 and not c.async_copy for c in configs)
    with pytest.raises(ConfigError, match="tags must be among"):
        TensorCorePolicy(LARGE.func(), H200, {"stages": 2})
    with pytest.raises(ConfigError, match="pipeline_stage"):
        TensorCorePolicy(LARGE.func(), H200, {"pipeline_stage": -1})


@pytest.mark.parametrize("case", [Case("nn", 64, 64, 64), Case("nn", 64, 64, 64, "float64")])
def test_no_tags_without_tensor_cores(case) -> None:
    func = case.func()
    assert get_tensorized_func_and_tags(func, H200) == (func, None)
    half = LARGE.func()
    assert get_tensorized_func_and_tags(half, T4.to_tvm()) == (half, None)
    assert TensorCorePolicy(func, H200).reason is not None
