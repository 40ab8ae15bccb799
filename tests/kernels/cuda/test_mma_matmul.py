"""GEMM with mma.sync: correct for any extents, and the instructions it lowers to."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys

import pytest
import tvm_ffi
from tvm.s_tir import meta_schedule as ms

from tests.kernels.cuda import on_cpu
from tests.kernels.cuda.products import Case, Conv, error, inputs, module
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.mma.family import MmaMatmul
from tvmopt.kernels.workload import Refusal

ARCH = GPUS["nvidia-h200"]
PLAIN = MmaConfig(
    "mma_matmul", ARCH, tile=(32, 32), warp_tile=(16, 32), k_block=32, stages=3, async_copy=True
)
HINTS = {
    "pipelined": PLAIN,
    "split": dataclasses.replace(PLAIN, tile=(32, 64), warp_tile=(32, 16), split_k=3),
    "through registers": dataclasses.replace(PLAIN, warp_tile=(16, 16), stages=2, async_copy=False),
    "fragments ahead": dataclasses.replace(
        PLAIN, k_block=64, stages=4, double_buffer_fragments=True
    ),
    "one stage": dataclasses.replace(PLAIN, stages=1, async_copy=False),
    "packed": dataclasses.replace(
        PLAIN, k_block=64, double_buffer_fragments=True, pack_a=True, pack_b=True
    ),
    "one packed": dataclasses.replace(PLAIN, split_k=2, pack_b=True),
}
CASES = (
    Case("nn", 37, 41, 29, "float16"),
    Case("nt", 32, 64, 48, "float16", bias=True),
    Case("tn", 37, 41, 29, "float16", batch=3),
    Case("tt", 40, 48, 64, "bfloat16", out="float32"),
    Case("nn", 1, 7, 3, "float16"),
    Case("nt", 1, 1000, 16, "float16"),
    Case("nt", 40, 44, 52, "int8", out="int32"),
    Case("nn", 40, 44, 52, "int8", out="int32"),
    Case("nt", 40, 44, 52, "uint8", out="int32", other="int8"),
    Conv("NHWC", 2, 7, 3, 5, 3, 2, 1, dtype="float16", bias=True),
    Conv("NCHW", 2, 7, 3, 5, 3, 1, 1, 2, dtype="float16", bias=True),
    Conv("HWNC", 2, 7, 16, 8, 1, 2, dtype="bfloat16"),
    Conv("NCHW", 2, 7, 16, 8, 3, 1, 1, dtype="int8", out="int32"),
)
TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-6}


def schedule(case: Case | Conv, hint: MmaConfig):
    return MmaMatmul().emit(case.func(), hint)


def cuda(sch, arch=ARCH) -> str:
    return build_kernels({"main": sch.mod["main"]}, arch).imports[0].inspect_source("cuda")


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "case, form",
    [
        *((case, "pipelined") for case in CASES),
        *((case, "split") for case in CASES[::3]),
        *((CASES[0], form) for form in ("through registers", "fragments ahead", "one stage")),
        *((CASES[9], form) for form in ("through registers", "fragments ahead")),
        *((CASES[n], "packed") for n in (0, 2, 5, 7, 8, 9)),
        *((CASES[n], "one packed") for n in (1, 3, 7)),
    ],
    ids=str,
)
def test_right_for_any_extents(case, form) -> None:
    with on_cpu.defined_instructions():
        sch = schedule(case, HINTS[form])
    arrays = inputs(case.func())
    found = on_cpu.run(sch, arrays)
    assert error(found, case.numpy(arrays)) <= TOLERANCE.get(case.out or case.dtype, 0.0)


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", ["pipelined", "through registers", "fragments ahead"])
@pytest.mark.parametrize(
    "case, shape",
    [
        (Case("nt", 256, 256, 256, "float16"), "m16n8k16.*f32.f16.f16.f32"),
        (Case("nn", 256, 256, 256, "bfloat16"), "m16n8k16.*f32.bf16.bf16.f32"),
        (Case("nt", 256, 256, 256, "int8", out="int32"), "m16n8k32.*s32.s8.s8.s32"),
        (Case("nt", 256, 256, 256, "uint8", out="int32", other="int8"), "m16n8k32.*s32.u8.s8.s32"),
    ],
    ids=str,
)
def test_multiplies_by_the_instruction(case, shape, form) -> None:
    source = cuda(schedule(case, HINTS[form]))
    assert re.search(f"mma.sync.aligned.{shape}", source)
    assert "ldmatrix.sync.aligned" in source
    assert ("cp.async" in source) == HINTS[form].async_copy


def test_transposes_where_it_loads() -> None:
    source = cuda(schedule(Case("nn", 256, 256, 256, "float16"), PLAIN))
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in source
    assert "cp_async_legacy_cg_16" in source


def test_zeros_beyond_the_edges_are_copied_asynchronously() -> None:
    source = cuda(schedule(Case("nt", 200, 200, 200, "float16"), PLAIN))
    assert "tvmopt_cp_async_16" in source


def test_packed_factors_need_no_guards_and_no_single_elements() -> None:
    source = cuda(schedule(Case("nn", 101, 103, 107, "float16"), HINTS["packed"]))
    assert source.count("__global__") == 6  # each kernel is declared, then defined
    assert "cp_async_legacy_cg_16" in source and "_cp_async_4" not in source
    assert "tvmopt_cp_async" not in source


def test_copies_go_among_products_with_one_barrier_a_step() -> None:
    hint = dataclasses.replace(HINTS["fragments ahead"], tile=(64, 64), warp_tile=(32, 32))
    source = cuda(schedule(Case("nt", 256, 256, 1024, "float16"), hint))
    start = source.index("for (int ax3_0_0 = 0")
    loop = source[start : source.index("wait_group_1()", start)]  # the first K step follows
    assert loop.count("__syncthreads()") == 1
    waits = loop.index("wait_group_2()")
    assert loop.index("mma.sync") < loop.index("cp_async") < loop.index("commit_group()") < waits
    assert waits < loop.index("__syncthreads()") < loop.rindex("ldmatrix") < loop.rindex("mma.sync")


def test_a_step_waits_before_it_copies() -> None:
    source = cuda(schedule(Case("nt", 256, 256, 1024, "float16"), PLAIN))
    start = source.index("for (int ax3_0_0 = 0")
    loop = source[start : source.index("ldmatrix", start)]
    words = ("wait_group_1()", "__syncthreads()", "cp_async_legacy", "commit_group()")
    places = [loop.index(word) for word in words]
    assert places == sorted(places) and loop.count("__syncthreads()") == 1


@pytest.mark.sample(2)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    "case, form",
    [
        (Case("nt", 200, 136, 272, "bfloat16", bias=True), "split"),
        (Case("nn", 100, 100, 100, "int8", out="int32"), "through registers"),
        (Conv("NHWC", 2, 9, 32, 24, 3, 2, 1, dtype="int8", out="int32"), "through registers"),
        (Conv("NHWC", 2, 9, 24, 40, 3, 1, 1, dtype="float16", bias=True), "fragments ahead"),
    ],
    ids=str,
)
def test_compiles_without_spilling(case, form, tmp_path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(cuda(schedule(case, HINTS[form])))
    command = ["nvcc", "-cubin", f"-arch={ARCH.arch}", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernel.cubin"), str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert " 0 bytes spill stores" in done.stderr


def test_trace_replays_from_a_database(tmp_path) -> None:
    case = Case("nn", 70, 66, 200, "float16", bias=True)
    sch = schedule(case, HINTS["split"])
    paths = [str(tmp_path / name) for name in ("workload.json", "record.json")]
    database = ms.database.JSONDatabase(*paths)
    workload = database.commit_workload(module(case.func()))
    database.commit_tuning_record(
        ms.database.TuningRecord(sch.trace, workload, [1.0], ARCH.to_tvm())
    )
    again = ms.database.JSONDatabase(*paths)
    found = again.query_schedule(module(case.func()), ARCH.to_tvm(), "main")
    assert tvm_ffi.structural_equal(found.mod, sch.mod)


def test_intrinsics_of_a_trace_are_registered_again() -> None:
    """A process may replay a trace before it schedules anything."""
    trace = str(schedule(Case("nn", 64, 64, 64, "bfloat16"), PLAIN).trace)
    names = sorted(set(re.findall(r"tvmopt\.mma_\w+(?:\.dyn)?", trace)))
    assert len(names) == 5, names
    program = (
        "import sys; from tvm.s_tir import TensorIntrin; "
        "from tvmopt.kernels.cpu.intrinsics.choose import register_used; "
        "register_used(sys.argv[1]); "
        "[TensorIntrin.get(name) for name in sys.argv[2:]]"
    )
    subprocess.run([sys.executable, "-c", program, trace, *names], check=True)


def test_refuses_what_it_does_not_fit() -> None:
    half = Case("nt", 64, 64, 64, "float16")
    assert isinstance(schedule(Case("nt", 64, 64, 1, "float16"), PLAIN), Refusal)
    assert isinstance(schedule(Case("nt", 64, 64, 64), PLAIN), Refusal)
    assert isinstance(schedule(half, dataclasses.replace(PLAIN, arch=GPUS["nvidia-t4"])), Refusal)
    for change in (
        {"tile": (48, 32)},
        {"warp_tile": (8, 32)},
        {"k_block": 24},
        {"stages": 3, "async_copy": False},
        {"tile": (512, 512), "warp_tile": (16, 16)},
        {"split_k": 128},
    ):
        assert isinstance(schedule(half, dataclasses.replace(PLAIN, **change)), Refusal), change


def test_older_gpus_take_it() -> None:
    ampere = dataclasses.replace(PLAIN, arch=GPUS["nvidia-a100"])
    source = cuda(schedule(Case("nt", 128, 128, 128, "float16"), ampere), GPUS["nvidia-a100"])
    assert "mma.sync.aligned" in source
