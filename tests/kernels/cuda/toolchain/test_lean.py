"""The steps of nvcc run one by one give the same machine code, or a reason to run nvcc."""

from __future__ import annotations

import shutil
import struct

import pytest
from tvm.support.nvcc import compile_cuda

from benchmarks.cuda_rows import row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.toolchain import compiler, modules
from tvmopt.kernels.cuda.toolchain import fast_nvcc as lean
from tvmopt.kernels.cuda.toolchain.fast_nvcc import LeanError, lean_compiler, lean_source, parts_of
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.cuda_check import difference

H200 = GPUS["nvidia-h200"]
GPU = ("-gencode", "arch=compute_90a,code=sm_90a")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

DRYRUN = """#$ TOP=/cuda
#$ CICC_PATH=/cuda/nvvm/bin
#$ gcc -D__CUDACC__ -E -x c++ "-I/cuda/include" -include "cuda_runtime.h" "/t/k.cu" -o "/t/k.ii"
#$ "$CICC_PATH/cicc" -arch compute_90a "/t/k.ii" -o "/t/k.ptx"
#$ ptxas -arch=sm_90a "/t/k.ptx" -o "/t/k.cubin"
"""


def test_commands_are_read_as_a_shell_would() -> None:
    environment, commands = parts_of(DRYRUN, {"HOME": "/h"})
    assert environment == {"HOME": "/h", "TOP": "/cuda", "CICC_PATH": "/cuda/nvvm/bin"}
    assert [c[0] for c in commands] == ["gcc", "/cuda/nvvm/bin/cicc", "ptxas"]
    assert commands[1][1:] == ["-arch", "compute_90a", "/t/k.ii", "-o", "/t/k.ptx"]


def test_a_prelude_is_preprocessed_without_the_hosts_headers(tmp_path) -> None:
    _, [command, *_] = parts_of(DRYRUN.replace("/t/k.cu", f"{tmp_path}/kernel.cu"), {})
    made = lean._of_prelude(command, tmp_path, tmp_path / "p.cu", tmp_path / "p.h")
    assert "cuda_runtime.h" not in made and "-nostdinc" in made
    assert made[-3:] == [str(tmp_path / "p.cu"), "-o", str(tmp_path / "p.h")]
    assert made.index(f"-I{tmp_path}/stand-ins") < made.index("-I/cuda/include")


def test_headers_that_the_prelude_stands_for_go() -> None:
    text, headers = lean_source("#include <cuda_fp16.h>\n #include <cstdint>\nhalf x;\n")
    assert text.split() == ["half", "x;"] and headers == ("cuda_fp16.h",)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("#include <nvshmem.h>", "includes nvshmem.h"),
        ("#include <cuda/barrier>\ncuda::barrier<cuda::thread_scope_block> b;", "cuda/barrier"),
        ("#include <cooperative_groups.h>\ncg::sync(g);", "uses cooperative_groups.h"),
    ],
)
def test_what_needs_more_is_left_to_nvcc(source: str, told: str) -> None:
    with pytest.raises(LeanError, match=told):
        lean_source(source)


def test_headers_that_are_not_used_go() -> None:
    rank = "cg::this_thread_block().thread_rank();"
    text, _ = lean_source(f"#include <cuda/barrier>\n#include <cooperative_groups.h>\n{rank}")
    assert text.strip() == rank


@pytest.mark.sample(2)
@needs_nvcc
@pytest.mark.parametrize(
    "name",
    [
        "softmax-128-10-float16", "matmul_nt-256-256-256-bfloat16", "matmul_nt-256-256-256-int8",
        "gemv_i4-256-256-float16", "float8_e4m3fn", "float64",
    ],
)  # fmt: skip
def test_machine_code_is_that_of_nvcc(name: str, monkeypatch) -> None:
    sources: list[str] = []
    monkeypatch.setattr(modules, "compile_cubin", lambda s, _: sources.append(s) or b"code")
    if "-" in name:
        func = row(name).func
        kernel = emit_kernel(func, policy_of(func, H200).emit_config(1)[0])
    else:
        kernel = difference(1000, name)
    with modules.embed_cubins(H200):
        build_kernels({"main": kernel}, H200)
    [source] = sources
    ours = lean_compiler((*GPU, *compiler._nvcc_options())).cubin(source)
    with H200.to_tvm():
        theirs = compile_cuda(source, target_format="cubin", arch=list(GPU), compiler="nvcc")
    assert _code(ours) == _code(bytes(theirs))


def _code(cubin: bytes) -> dict[str, bytes]:
    """Return the sections of an ELF file that contain instructions."""
    start, count, names = (
        *struct.unpack_from("<Q", cubin, 0x28), *struct.unpack_from("<HH", cubin, 0x3C),
    )  # fmt: skip
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + 64 * n) for n in range(count)]
    found = {}
    for name, _, _, _, offset, size in sections:
        begin = sections[names][4] + name
        text = cubin[begin : cubin.index(b"\0", begin)].decode()
        if text.startswith(".text"):
            found[text] = cubin[offset : offset + size]
    assert found
    return found


@needs_nvcc
def test_an_error_is_told_with_the_line() -> None:
    with pytest.raises(LeanError, match=r"cicc refused it: .*undefined"):
        lean_compiler(GPU).cubin('extern "C" __global__ void f(float* x) { y = 1; }')


def test_without_nvcc_there_is_none(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert lean_compiler.__wrapped__(("-no-such",)) is None
