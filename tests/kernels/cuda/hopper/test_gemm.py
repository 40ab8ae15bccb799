"""GEMM kernels: refusals, and the instructions in the emitted CUDA."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import compile_with_nvcc, cuda_source, fitted, gemm_config
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.workload import Refusal

SMALL = gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1)
SMEM_STORE = dataclasses.replace(SMALL, smem_store=True, persistent=False)
CLUSTER_SPLIT_K = gemm_config(tile_n=128, split_k=2, persistent=False, epilogue_buffers=1)


def test_instructions_of_a_gemm():
    source = cuda_source(gemm(GemmProblem(512, 512, 256), gemm_config(tile_n=128)))
    assert "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" in source
    assert "cp.async.bulk.tensor.2d.shared::cluster.global" in source
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in source
    assert "stmatrix" in source and "setmaxnreg" in source
    assert "multicast" not in source


@pytest.mark.parametrize(
    ("fields", "config", "words"),
    [
        ({"dtype": "bfloat16", "out": "bfloat16"}, SMALL, ["bf16.bf16", "cvt.rn.bf16x2.f32"]),
        ({"dtype": "int8", "out": "int32"}, SMALL, ["s32.s8.s8", "k32"]),
        ({"dtype": "float8_e4m3fn", "out": "bfloat16"}, SMALL, ["f32.e4m3.e4m3"]),
        ({"out": "float32"}, SMALL, ["store_pair_float32"]),
        ({"dtype": "float32", "out": "float32"}, SMALL, ["m64n64k8.f32.tf32.tf32"]),
        ({"batch": 3}, SMALL, ["cp.async.bulk.tensor.3d.shared", "tensor.3d.global"]),
        ({"n": 1001}, SMEM_STORE, ["copy_4", "bar.sync"]),
        (
            {"m": 16},
            dataclasses.replace(SMEM_STORE, swap_ab=True, tile_n=16, split_k=2),
            ["send_four_f32", "mapa.shared::cluster", "m64n16k16"],
        ),
        ({}, CLUSTER_SPLIT_K, ["send_four_f32", "stmatrix", "tensor.2d.global"]),
        ({}, gemm_config(tile_n=128, cluster_m=2), ["multicast::cluster"]),
        (
            {"k": 520},
            gemm_config(tile_n=128, cluster_m=4, cluster_n=2),
            ["multicast", "(ushort)(17"],
        ),
        (
            {"m": 300},
            gemm_config(consumer_warpgroups=1, tile_n=24, swap_ab=True, epilogue_buffers=1),
            ["m8n8.x4.trans", "m8n8.x2.trans", "tensor.2d.global"],
        ),
        ({"dynamic": True}, gemm_config(tile_n=128), ["cp.async.bulk.tensor.2d"]),
    ],
)
def test_variants(fields, config, words):
    problem = GemmProblem(**{"m": 256, "n": 1024, "k": 512, **fields})
    source = cuda_source(gemm(problem, fitted(config, problem.dtype)))
    for word in words:
        assert word in source


def _bias_gelu(accumulator, out):
    def compute(acc, bias):
        x = acc + T.cast(bias, "float32")
        half, one = tirx.const(0.5, "float32"), tirx.const(1, "float32")
        return half * x * (one + tirx.erf(x * tirx.const(0.70710678, "float32")))

    return elementwise(accumulator, out, compute, [("float16", (500,), (1,))], rank=2)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(SMEM_STORE, tile_n=40),
        CLUSTER_SPLIT_K,
        dataclasses.replace(SMEM_STORE, consumer_warpgroups=2, tile_n=104, split_k=2),
        gemm_config(
            tile_n=72, stages=5, cluster_m=2, cluster_n=2, swap_ab=True, epilogue_buffers=1
        ),
        gemm_config(tile_n=104, stages=6, epilogue_buffers=2, wgmma_wait_depth=2),
        gemm_config(tile_n=128, stages=5, cluster_m=4, cluster_n=2, epilogue_buffers=1),
        gemm_config(stages=5, epilogue_buffers=1, pingpong=True),
        gemm_config(m_atoms=2, tile_n=128, stages=5, pingpong=True),
    ],
)
def test_epilogue_compiles(config, tmp_path):
    problem = GemmProblem(333, 504, 128, epilogue=_bias_gelu("float32", "float16"))
    source = cuda_source(gemm(problem, config))
    assert "normal_cdf" in source and "erff" not in source
    said = compile_with_nvcc(source, tmp_path)
    if said is None:
        pytest.skip("nvcc is not installed")
    assert "0 bytes spill stores" in said


@pytest.mark.parametrize("columns", [8, 40, 128])
@pytest.mark.parametrize("split", [1, 2, 3, 8])
def test_every_column_is_stored_by_one_thread_block(columns, split):
    config = dataclasses.replace(SMEM_STORE, tile_n=columns, split_k=split)
    parts = [config.columns_of(rank) for rank in range(split)]
    assert [c for part in parts for c in part] == list(range(columns))
    assert max(map(len, parts)) == config.block_columns


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"k": 100, "dynamic": True}, "A has rows of 200, and their number is dynamic"),
        ({"m": 2**26, "n": 8, "k": 33}, "a copy of an operand has more than 2**31 - 1"),
        ({"dtype": "float64"}, "inputs must be of"),
        ({"out": "int32"}, "output of float16 must be of"),
        ({"m": 0}, "at least 1"),
        ({"m": 65536, "n": 32768}, "more than 2**31 - 1"),
        ({"dynamic": True, "batch": 2}, "static number of rows"),
    ],
)
def test_refused_problems(fields, reason):
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})
    assert reason in problem.refusal.reason
    assert gemm(problem, SMEM_STORE) == problem.refusal


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (gemm_config(stages=9), "bytes of shared memory"),
        (gemm_config(m_atoms=2, tile_n=256), "registers"),
        (gemm_config(tile_n=20), "a multiple of 8"),
        (gemm_config(consumer_warpgroups=4), "one to three consumer warpgroups"),
        (dataclasses.replace(SMEM_STORE, split_k=9), "cannot be split by 9"),
        (dataclasses.replace(SMALL, split_k=2), "cluster split-K needs one tile a thread block"),
        (dataclasses.replace(CLUSTER_SPLIT_K, split_k=3), "whole groups"),
        (
            dataclasses.replace(SMALL, swap_ab=True, epilogue_buffers=2),
            "not whole groups of 8 and 2",
        ),
        (
            dataclasses.replace(CLUSTER_SPLIT_K, swap_ab=True, tile_n=136),
            "not whole groups of 8 and 1",
        ),
        (dataclasses.replace(CLUSTER_SPLIT_K, cluster_m=2), "either for multicast or for split-K"),
        (gemm_config(tile_n=128, cluster_n=3), "1 x 3 cannot multicast"),
        (gemm_config(tile_n=128, cluster_m=4, cluster_n=4), "4 x 4 cannot multicast"),
        (gemm_config(tile_n=8, cluster_m=2), "2 x 1 cannot multicast"),
        (dataclasses.replace(SMALL, tile_n=40), "40 columns are not whole groups of 1 x 64"),
        (dataclasses.replace(SMALL, tile_n=136, epilogue_buffers=2), "whole groups of 2 x 64"),
        (gemm_config(consumer_warpgroups=3, tile_n=256, stages=2), "registers"),
        (gemm_config(consumer_warpgroups=3, tile_n=128, pingpong=True), "two consumer warpgroups"),
        (gemm_config(tile_n=128, pingpong=True, persistent=False), "needs a persistent grid"),
        (gemm_config(tile_n=128, pingpong=True, split_k=2, split_k_workspace=True), "no split-K"),
        (gemm_config(tile_n=128, pingpong=True, cluster_m=2), "no cluster"),
        (gemm_config(tile_n=128, pingpong=True, swap_ab=True), "no swapped A and B"),
        (gemm_config(tile_n=64, pingpong=True, smem_store=True), "stores with TMA"),
        (dataclasses.replace(SMALL, stages=1), "at least two stages"),
        (dataclasses.replace(SMALL, stages=2, wgmma_wait_depth=2), "one more for each wgmma"),
    ],
)
def test_refused_configurations(config, reason):
    found = gemm(GemmProblem(512, 512, 1024), config)
    assert isinstance(found, Refusal) and reason in found.reason


@pytest.mark.parametrize(
    ("fields", "config", "maps"),
    [
        ({"m": 768}, gemm_config(tile_n=128), 3),
        ({"m": 777}, gemm_config(tile_n=128), 4),
        ({"m": 777, "n": 1000}, gemm_config(tile_n=128), 5),
        # Of 104 columns one thread block loads 48, the other 56.
        ({"m": 777, "n": 1000}, gemm_config(tile_n=128, cluster_m=2), 6),
        ({"m": 777, "n": 1008}, gemm_config(tile_n=128, cluster_m=2), 5),
        ({"n": 1000, "trans_b": False}, gemm_config(tile_n=192, epilogue_buffers=1), 3),
        ({"m": 777, "dynamic": True}, gemm_config(tile_n=128), 3),
    ],
)
def test_last_tiles_load_only_what_there_is(fields, config, maps):
    source = cuda_source(gemm(GemmProblem(**{"m": 1024, "n": 1024, "k": 512, **fields}), config))
    kernel = source[source.rindex("main_kernel(") :].partition("{")[0]
    assert kernel.count("CUtensorMap") == maps


@pytest.mark.parametrize(
    "config",
    [
        gemm_config(tile_n=104, smem_store=True, cluster_m=4, cluster_n=2),
        gemm_config(tile_n=128, cluster_m=2, cluster_n=4),
        CLUSTER_SPLIT_K,
    ],
)
def test_special_registers_are_read_once(config):
    source = cuda_source(gemm(GemmProblem(1000, 1000, 1000), config))
    kernel = source[source.rindex("main_kernel(") :]
    # TVM's binding, and the variable that holds it; never in a loop.
    assert kernel.count("tvm_builtin_cluster_ctaid_x()") <= 3
    assert kernel.count("tvm_builtin_ptx_fetch_register_clusterid_x()") <= 3


def test_threads_that_issue_tma_are_elected():
    source = cuda_source(gemm(GemmProblem(1000, 1000, 1000), gemm_config(tile_n=128)))
    kernel = source[source.rindex("main_kernel(") :]
    # Descriptor prefetch, mbarrier init, TMA loads, TMA stores.
    assert kernel.count("elect_one()") == 3 + 2 * 2 + 1
    assert "elect.sync" in source and "& 127) < 1) {" not in kernel


def _calls(source, name):
    return re.findall(rf"^ +\w*{name}\w*\(.*\);", source, re.MULTILINE)


def test_cluster_barriers_release_only_after_dsmem_stores():
    problem = GemmProblem(256, 1024, 512)
    shared = cuda_source(gemm(problem, gemm_config(tile_n=128, cluster_m=2)))
    divided = cuda_source(gemm(problem, CLUSTER_SPLIT_K))
    # Once in the producer warpgroup, once in the consumer warpgroups.
    assert [len(_calls(s, "cuda_cluster_sync")) for s in (shared, divided)] == [0, 2]
    assert [len(_calls(s, "sync_cluster_relaxed")) for s in (shared, divided)] == [1, 3]
    assert "barrier.cluster.arrive.relaxed" in shared


def test_the_epilogue_tile_aliases_the_ring_with_one_tile_a_block():
    once = gemm_config(tile_n=256, epilogue_buffers=4, persistent=False)
    ring = once.stages * once.stage_bytes
    assert once.tma_store_bytes > 0 and ring <= once.smem_bytes < ring + 2048
    assert dataclasses.replace(once, persistent=True).smem_bytes >= ring + once.tma_store_bytes
    problem = GemmProblem(256, 1024, 512)
    # Only the end of the kernel waits for a TMA store to read its buffer.
    assert len(_calls(cuda_source(gemm(problem, once)), "wait_group_read")) == 1
    few = dataclasses.replace(once, epilogue_buffers=2)
    assert len(_calls(cuda_source(gemm(problem, few)), "wait_group_read")) == 3


@pytest.mark.parametrize(("cluster_size", "resident"), [(1, 132), (2, 66), (4, 30), (8, 15)])
def test_persistent_clusters_are_as_many_as_are_resident(cluster_size, resident):
    config = gemm_config(tile_n=128, cluster_m=cluster_size)
    assert config.resident_clusters == resident
    source = cuda_source(gemm(GemmProblem(64 * 1024, 1024, 64), config))
    assert f"+ {resident})" in source


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({}, SMALL),
        ({"n": 77, "batch": 2}, SMEM_STORE),
        ({"m": 5, "n": 77}, dataclasses.replace(SMEM_STORE, swap_ab=True, tile_n=8)),
        ({"k": 2047, "dtype": "int8", "out": "int32"}, SMALL),
    ],
)
def test_workspace_split_k(fields, config):
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 2048, **fields})
    config = dataclasses.replace(config, split_k=5, split_k_workspace=True)
    source = cuda_source(gemm(problem, fitted(config, problem.dtype)))
    kind = "s32" if "dtype" in fields else "f32"
    assert f"sum_5_of_1_{kind}" in source and "cluster_sync" not in source
    assert source.count("__global__") == (6 if "k" in fields else 4)


def test_workspace_split_k_has_several_slices():
    one = dataclasses.replace(SMALL, split_k_workspace=True)
    assert "needs several slices" in one.why_not(GemmProblem(64, 64, 64)).reason
    deep = dataclasses.replace(one, split_k=9)
    assert "cannot be split by 9" in deep.why_not(GemmProblem(64, 64, 512)).reason
    assert deep.why_not(GemmProblem(64, 64, 1024)) is None


def test_unaligned_rows_need_the_smem_store():
    assert "multiple of 16 bytes" in SMALL.why_not(GemmProblem(64, 33, 64)).reason
    swapped = dataclasses.replace(SMALL, swap_ab=True)
    refusal = swapped.why_not(GemmProblem(64, 32, 64, out="float32"))
    assert "no elements of 4 bytes" in refusal.reason
    assert swapped.why_not(GemmProblem(64, 32, 64)) is None
    assert SMEM_STORE.why_not(GemmProblem(64, 33, 64)) is None


def test_the_integer_wgmma_has_few_widths():
    problem = GemmProblem(64, 128, 64, dtype="int8", out="int32")
    assert "no 256 columns" in fitted(gemm_config(), "int8").why_not(problem).reason
