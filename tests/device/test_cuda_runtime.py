"""Tests of the CUDA runtime check: missing driver, missing CUDA library, missing GPU."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from tvmopt.device import cuda_runtime


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(tvm_ffi, "get_global_func", lambda name, allow_missing: None)
    cuda_runtime.problem.cache_clear()
    yield
    cuda_runtime.problem.cache_clear()


def loading(monkeypatch, *names: str) -> None:
    monkeypatch.setattr(cuda_runtime, "_loads", lambda library: library in names)
    monkeypatch.setattr(cuda_runtime, "_has_driver", lambda: cuda_runtime.DRIVER in names)


def test_without_a_driver_there_is_no_gpu(monkeypatch) -> None:
    loading(monkeypatch, cuda_runtime.LIBRARY)
    assert cuda_runtime.problem() == "there is no NVIDIA driver (libcuda.so.1)"
    assert cuda_runtime.missing(80) == "a GPU of compute capability 8.0"
    assert cuda_runtime.describe() == ""


def test_with_a_driver_only_the_cuda_library_is_missing(monkeypatch) -> None:
    loading(monkeypatch, cuda_runtime.DRIVER)
    assert "is not found; install CUDA 13's toolkit, or run: pip" in cuda_runtime.problem()
    assert cuda_runtime.missing(80) == "libcudart.so.13"


def test_the_cuda_library_of_pypi_is_found(monkeypatch, tmp_path) -> None:
    library = tmp_path / "nvidia" / "cu13" / "lib" / cuda_runtime.LIBRARY
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert library in list(cuda_runtime._wheels())
    loading(monkeypatch, str(library))
    assert cuda_runtime.load_library()


@pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU")
def test_a_stub_driver_is_no_driver(monkeypatch) -> None:
    from tvmopt.kernels.cuda.toolchain.modules import _driver_stand_in

    if not cuda_runtime._has_driver():
        stand_in = _driver_stand_in()
        assert hasattr(stand_in, "cuLaunchKernelEx") and not cuda_runtime._has_driver()


@pytest.mark.skipif(not tvm.runtime.cuda(0).exist, reason="this machine has no GPU")
def test_a_gpu_that_is_there_is_described(monkeypatch) -> None:
    monkeypatch.undo()
    assert "driver for CUDA" in cuda_runtime.describe()
