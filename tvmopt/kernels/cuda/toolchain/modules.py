"""Embed cubins, not CUDA source, in compiled libraries.

TVM embeds source and compiles it when the library is loaded: slowly, one kernel after the other,
and only where a compiler is installed. Here each kernel module is compiled at build time, on all
cores (:mod:`.split_source`).

TVM's CUDA runtime writes such modules, but does not load without a driver, as on a machine that
cross-compiles. It calls the driver only when a kernel runs, so there a stub driver library, whose
every function fails, suffices.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tvmopt.device import cuda_runtime
from tvmopt.device.cuda import CudaArch
from tvmopt.errors import EnvironmentSetupError
from tvmopt.kernels.cuda.toolchain.compiler import compile_cubin, compiler
from tvmopt.kernels.cuda.toolchain.split_source import SourcePart, split_source

_CREATE = "ffi.Module.create.cuda"
# Driver functions that TVM's CUDA runtime links.
_DRIVER_FUNCTIONS = (
    "cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString",
    "cuLaunchKernelEx", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)  # fmt: skip
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@contextlib.contextmanager
def embed_cubins(arch: CudaArch) -> Iterator[None]:
    """Context in which TVM compiles kernel modules to cubins for ``arch``.

    Raises:
        EnvironmentSetupError: When TVM's CUDA runtime cannot be loaded.
        BuildError: From the build inside, when a kernel does not compile.
    """
    import tvm
    from tvm_ffi.registry import register_global_func, remove_global_func

    before = tvm.get_global_func(_CREATE, allow_missing=True)
    original = before or _create_function()

    def create(code: Any, form: str, functions: Any, *rest: Any) -> Any:
        if str(form) != "cuda":
            return original(code, form, functions, *rest)
        source = code if isinstance(code, str) else bytes(code).decode()
        first, *others = (
            original(cubin, "cubin", {name: functions[name] for name in part.kernels}, *rest)
            for part, cubin in _compiled(split_source(source, list(functions)), arch)
        )
        for other in others:  # a library finds the kernels of imported modules, too
            first.import_module(other)
        return first

    register_global_func(_CREATE, create, override=True)
    try:
        yield
    finally:
        if before is not None:
            register_global_func(_CREATE, before, override=True)
        else:  # other builds in this process embed source, as before
            remove_global_func(_CREATE)


def _compiled(parts: Sequence[SourcePart], arch: CudaArch) -> Iterator[tuple[SourcePart, bytes]]:
    """Yield each part with its cubin, in order; compile as many at once as there are cores."""
    if len(parts) == 1:
        yield parts[0], compile_cubin(parts[0].source, arch)
        return
    cores = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(min(cores, len(parts))) as threads:
        cubins = threads.map(lambda part: compile_cubin(part.source, arch), parts)
        yield from zip(parts, cubins, strict=True)


def check_tools() -> None:
    """Raise :class:`EnvironmentSetupError` when a tool that builds for GPUs need is missing."""
    compiler()
    if not cuda_runtime.load_library():
        raise EnvironmentSetupError(
            f"CUDA's runtime library ({cuda_runtime.LIBRARY}) must be installed to build for a "
            f"GPU, but is not found; {cuda_runtime.CURE}"
        )


@functools.cache
def _create_function() -> Any:
    """Return the module constructor of TVM's CUDA runtime; load the runtime for it."""
    import tvm

    _load_runtime()
    found = tvm.get_global_func(_CREATE, allow_missing=True)
    if found is None:
        raise EnvironmentSetupError(
            "TVM's CUDA runtime was loaded but registers no modules; run tvmopt doctor"
        )
    return found


def _load_runtime() -> None:
    """Load TVM's CUDA runtime library."""
    import tvm

    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    cuda_runtime.load_library()
    stand_in = _driver_stand_in()  # keep it loaded: the runtime finds it by its soname
    try:
        ctypes.CDLL(str(runtime))
    except OSError as error:
        raise EnvironmentSetupError(
            "TVM's CUDA runtime must load to build for a GPU, but did not: "
            f"{error}; {cuda_runtime.CURE}"
        ) from error
    del stand_in


def _driver_stand_in() -> ctypes.CDLL:
    """Return the CUDA driver; without one, a stub with its soname that reports no device."""
    from tvmopt.link import cxx_compiler

    with contextlib.suppress(OSError):
        return ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    source = "".join(
        f'extern "C" int {name}() {{ return {_NO_DEVICE}; }}\n' for name in _DRIVER_FUNCTIONS
    )
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        library, text = Path(folder) / "libcuda.so.1", Path(folder) / "driver.cc"
        text.write_text(source)
        command = [
            shutil.which(cxx_compiler()) or cxx_compiler(), "-shared", "-fPIC", str(text),
            "-Wl,-soname,libcuda.so.1", "-o", str(library),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentSetupError(
                f"the C++ compiler failed: {done.stderr.strip()[-200:]}; run tvmopt doctor"
            )
        return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
