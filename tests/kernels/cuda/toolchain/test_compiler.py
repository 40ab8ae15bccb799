"""CUDA compilers: discovery, cubins, error messages."""

from __future__ import annotations

import os
import shutil

import pytest
import tvm
from tvm import te, tirx
from tvm.support import nvcc

from tvmopt.device.gpus import GPUS
from tvmopt.errors import BuildError, EnvironmentSetupError
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.toolchain import compiler as module
from tvmopt.kernels.cuda.toolchain.compiler import compile_cubin, compiler, first_complaint
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.measure.cuda_check import difference

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
H200 = GPUS["nvidia-h200"]


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.delenv(module.MODE, raising=False)
    compiler.cache_clear()
    yield
    compiler.cache_clear()


def test_a_compiler_that_does_not_exist_is_refused(monkeypatch) -> None:
    monkeypatch.setenv(module.MODE, "gcc")
    with pytest.raises(EnvironmentSetupError, match="must be nvcc or nvrtc, but got 'gcc'"):
        compiler()


def test_without_a_compiler_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module, "_has_nvrtc", lambda: False)
    with pytest.raises(EnvironmentSetupError, match="install CUDA's toolkit"):
        compiler()


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("code\nCompilation error:\na.cu(3): error: expected a ';'\n1 error detected", "a.cu(3)"),
        ("ptxas fatal   : Unresolved extern function 'f'", "ptxas fatal"),
        ("#error no\nlast", "#error no"),
        ("", "no message"),
    ],
)
def test_the_first_complaint_is_told(log: str, told: str) -> None:
    assert first_complaint(log).startswith(told)


@needs_nvcc
@pytest.mark.parametrize("before", [None, "yes"])
def test_functions_are_exact_however_nvcc_is_called(before, monkeypatch) -> None:
    """TVM adds --use_fast_math unless a variable is set; with it, a power of -1 is NaN."""
    variable, seen = "TVM_CUDA_NVCC_NO_FAST_MATH", []
    if before is None:
        monkeypatch.delenv(variable, raising=False)
    else:
        monkeypatch.setenv(variable, before)

    def compile_cuda(*_, arch, **__):
        seen.append((*arch, os.environ[variable]))
        return b""

    monkeypatch.setattr(module, "lean_compiler", lambda options: seen.append(options))
    monkeypatch.setattr(nvcc, "compile_cuda", compile_cuda)
    compile_cubin("", H200)
    for options in seen:
        assert "--use_fast_math" not in options
        assert {"--ftz=true", "--prec-div=false"} <= set(options)
    assert len(seen) == 2 and seen[1][-1] == "1"
    assert os.environ.get(variable) == before


@needs_nvcc
def test_machine_code_is_of_the_gpu_that_was_named() -> None:
    code = compile_cubin('extern "C" __global__ void f(float* x) { x[0] = 1.0f; }', H200)
    assert code.startswith(b"\x7fELF")
    with pytest.raises(BuildError, match=r"nvcc refused a kernel: .*undefined"):
        compile_cubin('extern "C" __global__ void f(float* x) { y = 1; }', H200)


@needs_nvcc
def test_a_library_holds_machine_code_and_no_source(tmp_path) -> None:
    """This also holds on a machine without GPU and driver."""
    path = tmp_path / "kernels.so"
    with embed_cubins(H200):
        build_kernels({"main": difference(1000, "float16")}, H200).export_library(str(path))
    data = path.read_bytes()
    assert data.count(b"\x7fELF") >= 2  # the host library, and the cubin of the GPU
    assert b"__global__" not in data
    loaded = tvm.runtime.load_module(str(path))
    assert loaded.implements_function("main")


@needs_nvcc
@pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU")
def test_other_builds_of_the_process_stay_as_they_were() -> None:
    kernels = {"main": difference(1000, "float16")}
    with embed_cubins(H200):
        build_kernels(kernels, H200)
    source = build_kernels(kernels, H200).imports[0].inspect_source()
    assert "__global__" in source


@needs_nvcc
def test_what_does_not_compile_is_the_builds_error() -> None:
    count = te.placeholder((32,), "float32", "A")
    wrong = te.compute((32,), lambda i: tirx.call_extern("float32", "no_such_thing", count[i]))
    sch = tvm.s_tir.Schedule(te.create_prim_func([count, wrong]))
    [loop] = sch.get_loops(sch.get_sblock("compute"))
    sch.bind(loop, "threadIdx.x")
    with pytest.raises(Exception, match="no_such_thing"), embed_cubins(H200):
        build_kernels({"main": sch.mod["main"]}, H200)
