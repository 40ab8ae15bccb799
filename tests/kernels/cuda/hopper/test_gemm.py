"""Products of matrices: what is refused, and the instructions that come out."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import compile_with_nvcc, cuda_source
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

SMALL = Config(consumers=1, columns=64, stages=4, buffers=1)
STAGED = dataclasses.replace(SMALL, staged=True, persistent=False)
DIVIDED = Config(columns=128, split=2, persistent=False, buffers=1)


def test_instructions_of_a_product():
    source = cuda_source(gemm(GemmProblem(512, 512, 256), Config(columns=128)))
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
        ({"batch": 3}, SMALL, ["cp.async.bulk.tensor.3d.shared", "tensor.3d.global"]),
        ({"n": 1001}, STAGED, ["copy_4", "bar.sync"]),
        (
            {"m": 16},
            dataclasses.replace(STAGED, swap=True, columns=16, split=2),
            ["send_four_f32", "mapa.shared::cluster", "m64n16k16"],
        ),
        ({}, DIVIDED, ["send_four_f32", "stmatrix", "tensor.2d.global"]),
        ({}, Config(columns=128, cluster=2), ["multicast::cluster"]),
        ({"k": 520}, Config(columns=128, cluster=4, beside=2), ["multicast", "(ushort)(17"]),
        (
            {"m": 300},
            Config(consumers=1, columns=24, swap=True, buffers=1),
            ["m8n8.x4.trans", "m8n8.x2.trans", "tensor.2d.global"],
        ),
        ({"dynamic": True}, Config(columns=128), ["cp.async.bulk.tensor.2d"]),
    ],
)
def test_variants(fields, config, words):
    problem = GemmProblem(**{"m": 256, "n": 1024, "k": 512, **fields})
    source = cuda_source(gemm(problem, config))
    for word in words:
        assert word in source


def _bias_gelu(accumulator, out):
    def compute(acc, bias):
        x = acc + T.cast(bias, "float32")
        half, one = tirx.const(0.5, "float32"), tirx.const(1, "float32")
        return half * x * (one + tirx.erf(x * tirx.const(0.70710678, "float32")))

    return elementwise(accumulator, out, compute, [("float16", (500,), (1,))], rank=2)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(STAGED, columns=40),
        DIVIDED,
        dataclasses.replace(STAGED, consumers=2, columns=104, split=2),
        Config(columns=72, stages=5, cluster=2, beside=2, swap=True, buffers=1),
        Config(columns=104, stages=6, buffers=2, flight=2),
        Config(columns=128, stages=5, cluster=4, beside=2, buffers=1),
    ],
)
def test_epilogue_compiles(config, tmp_path):
    problem = GemmProblem(333, 504, 128, epilogue=_bias_gelu("float32", "float16"))
    source = cuda_source(gemm(problem, config))
    assert "erff" in source
    said = compile_with_nvcc(source, tmp_path)
    if said is None:
        pytest.skip("nvcc is not installed")
    assert "0 bytes spill stores" in said


@pytest.mark.parametrize("columns", [8, 40, 128])
@pytest.mark.parametrize("split", [1, 2, 3, 8])
def test_every_column_is_finished_by_one_thread_block(columns, split):
    config = dataclasses.replace(STAGED, columns=columns, split=split)
    parts = [config.columns_of(rank) for rank in range(split)]
    assert [c for part in parts for c in part] == list(range(columns))
    assert max(map(len, parts)) == config.part_columns


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"k": 100, "dynamic": True}, r"those of A have 200, and their number is not known"),
        ({"m": 2**26, "n": 8, "k": 33}, r"a copy of an operand has more than 2\*\*31 - 1"),
        ({"dtype": "float32"}, "inputs must be of"),
        ({"out": "int32"}, "output of float16 must be of"),
        ({"m": 0}, "at least 1"),
        ({"m": 65536, "n": 32768}, r"more than 2\*\*31 - 1"),
        ({"dynamic": True, "batch": 2}, "static number of rows"),
    ],
)
def test_refused_products(fields, reason):
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})
    with pytest.raises(ConfigError, match=reason):
        gemm(problem, STAGED)
    with pytest.raises(ConfigError, match=reason):
        problem.check()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(stages=9), "bytes of shared memory"),
        (Config(atoms=2, columns=256), "registers"),
        (Config(columns=20), "a multiple of 8"),
        (Config(consumers=4), "one to three warpgroups"),
        (dataclasses.replace(STAGED, split=9), "cannot be divided by 9"),
        (dataclasses.replace(SMALL, split=2), "a cluster divides needs one tile a thread block"),
        (dataclasses.replace(DIVIDED, split=3), "whole groups"),
        (dataclasses.replace(SMALL, swap=True, buffers=2), "not whole groups of 8 and 2"),
        (dataclasses.replace(DIVIDED, swap=True, columns=136), "not whole groups of 8 and 1"),
        (dataclasses.replace(DIVIDED, cluster=2), "shares either loads or depth"),
        (Config(columns=128, beside=3), "1 x 3 thread blocks cannot share loads"),
        (Config(columns=128, cluster=4, beside=4), "4 x 4 thread blocks cannot share loads"),
        (Config(columns=8, cluster=2), "2 x 1 thread blocks cannot share loads"),
        (dataclasses.replace(SMALL, columns=40), "40 columns are not whole groups of 1 x 64"),
        (dataclasses.replace(SMALL, columns=136, buffers=2), "whole groups of 2 x 64"),
        (Config(consumers=3, columns=256, stages=2), "registers"),
        (dataclasses.replace(SMALL, stages=1), "at least two stages"),
        (dataclasses.replace(SMALL, stages=2, flight=2), "one for each group more"),
    ],
)
def test_refused_configurations(config, reason):
    with pytest.raises(ConfigError, match=reason):
        gemm(GemmProblem(512, 512, 1024), config)


@pytest.mark.parametrize(
    ("fields", "config", "maps"),
    [
        ({"m": 768}, Config(columns=128), 3),
        ({"m": 777}, Config(columns=128), 4),
        ({"m": 777, "n": 1000}, Config(columns=128), 5),
        # Of 104 columns one thread block loads 48, the other 56.
        ({"m": 777, "n": 1000}, Config(columns=128, cluster=2), 6),
        ({"m": 777, "n": 1008}, Config(columns=128, cluster=2), 5),
        ({"n": 1000, "trans_b": False}, Config(columns=192, buffers=1), 3),
        ({"m": 777, "dynamic": True}, Config(columns=128), 3),
    ],
)
def test_last_tiles_load_only_what_there_is(fields, config, maps):
    source = cuda_source(gemm(GemmProblem(**{"m": 1024, "n": 1024, "k": 512, **fields}), config))
    kernel = source[source.rindex("main_kernel(") :].partition("{")[0]
    assert kernel.count("CUtensorMap") == maps


@pytest.mark.parametrize(
    "config",
    [
        Config(columns=104, staged=True, cluster=4, beside=2),
        Config(columns=128, cluster=2, beside=4),
        DIVIDED,
    ],
)
def test_special_registers_are_read_once(config):
    source = cuda_source(gemm(GemmProblem(1000, 1000, 1000), config))
    kernel = source[source.rindex("main_kernel(") :]
    # TVM's binding, and the variable that holds it; never in a loop.
    assert kernel.count("tvm_builtin_cluster_ctaid_x()") <= 3
    assert kernel.count("tvm_builtin_ptx_fetch_register_clusterid_x()") <= 3


def test_threads_of_the_copy_engine_are_elected():
    source = cuda_source(gemm(GemmProblem(1000, 1000, 1000), Config(columns=128)))
    kernel = source[source.rindex("main_kernel(") :]
    # One that prepares the maps, one the barriers, one that loads, and those that store.
    assert kernel.count("elect_one()") == 3 + 2 * 2 + 1
    assert "elect.sync" in source and "& 127) < 1) {" not in kernel


def _calls(source, name):
    return re.findall(rf"^ +\w*{name}\w*\(.*\);", source, re.MULTILINE)


def test_clusters_wait_for_a_fence_of_the_gpu_only_after_sending():
    problem = GemmProblem(256, 1024, 512)
    shared = cuda_source(gemm(problem, Config(columns=128, cluster=2)))
    divided = cuda_source(gemm(problem, DIVIDED))
    # Once for those that load, once for those that multiply.
    assert [len(_calls(s, "cuda_cluster_sync")) for s in (shared, divided)] == [0, 2]
    assert [len(_calls(s, "sync_cluster_relaxed")) for s in (shared, divided)] == [1, 3]
    assert "barrier.cluster.arrive.relaxed" in shared


def test_results_of_one_tile_leave_from_where_the_ring_is():
    once = Config(columns=256, stages=4, buffers=4, persistent=False)
    ring = once.stages * once.stage_bytes
    assert once.sent_bytes > 0 and ring <= once.shared_bytes < ring + 2048
    assert dataclasses.replace(once, persistent=True).shared_bytes >= ring + once.sent_bytes
    problem = GemmProblem(256, 1024, 512)
    # Nothing waits for a chunk to leave but the end of the kernel.
    assert len(_calls(cuda_source(gemm(problem, once)), "wait_group_read")) == 1
    few = dataclasses.replace(once, buffers=2)
    assert len(_calls(cuda_source(gemm(problem, few)), "wait_group_read")) == 3


@pytest.mark.parametrize(("together", "at_once"), [(1, 132), (2, 66), (4, 30), (8, 15)])
def test_persistent_clusters_are_as_many_as_run_at_once(together, at_once):
    config = Config(columns=128, cluster=together)
    assert config.at_once == at_once
    source = cuda_source(gemm(GemmProblem(64 * 1024, 1024, 64), config))
    assert f"+ {at_once})" in source


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({}, SMALL),
        ({"n": 77, "batch": 2}, STAGED),
        ({"m": 5, "n": 77}, dataclasses.replace(STAGED, swap=True, columns=8)),
        ({"k": 2047, "dtype": "int8", "out": "int32"}, SMALL),
    ],
)
def test_parts_that_are_added_up_later(fields, config):
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 2048, **fields})
    source = cuda_source(gemm(problem, dataclasses.replace(config, split=5, apart=True)))
    kind = "s32" if "dtype" in fields else "f32"
    assert f"sum_5_of_1_{kind}" in source and "cluster_sync" not in source
    assert source.count("__global__") == (6 if "k" in fields else 4)


def test_parts_that_are_added_up_later_are_several():
    one = dataclasses.replace(SMALL, apart=True)
    assert "must be several" in one.why_not(GemmProblem(64, 64, 64))
    deep = dataclasses.replace(one, split=9)
    assert "cannot be divided by 9" in deep.why_not(GemmProblem(64, 64, 512))
    assert deep.why_not(GemmProblem(64, 64, 1024)) is None


def test_odd_output_needs_staged_stores():
    assert "multiple of 16 bytes" in SMALL.why_not(GemmProblem(64, 33, 64))
    exchanged = dataclasses.replace(SMALL, swap=True)
    assert "staged stores of 4 bytes" in exchanged.why_not(GemmProblem(64, 32, 64, out="float32"))
    assert exchanged.why_not(GemmProblem(64, 32, 64)) is None
    assert STAGED.why_not(GemmProblem(64, 33, 64)) is None


def test_integer_instruction_has_few_widths():
    problem = GemmProblem(64, 128, 64, dtype="int8", out="int32")
    assert "no 256 columns" in Config(columns=256).why_not(problem)
