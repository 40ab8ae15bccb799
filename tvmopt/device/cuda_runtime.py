"""What a process needs to run code on an NVIDIA GPU, and what of it is missing.

TVM loads its CUDA runtime when it is imported, if the driver and CUDA's own runtime library lie
where the system looks. The latter may also be that of the PyPI package ``nvidia-cuda-runtime``,
which nothing but this page would find.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

DRIVER = "libcuda.so.1"
#: What TVM's wheel is linked with.
LIBRARY = "libcudart.so.13"
#: The package of PyPI that has it.
PACKAGE = "nvidia-cuda-runtime>=13,<14"
#: What to do where it is missing.
CURE = f'install CUDA 13\'s toolkit, or run: pip install "{PACKAGE}"'
_DEVICE_API = "device_api.cuda"


@functools.cache
def problem() -> str:
    """Why this process can use no NVIDIA GPU; empty when it can use those that there are.

    TVM's CUDA runtime is loaded where it was not, but could be.
    """
    import tvm
    import tvm_ffi

    if not _has_driver():
        return f"there is no NVIDIA driver ({DRIVER})"
    if tvm_ffi.get_global_func(_DEVICE_API, allow_missing=True) is None:
        if not load_library():
            return f"CUDA's runtime library ({LIBRARY}) is not found; {CURE}"
        runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
        try:
            ctypes.CDLL(str(runtime))
        except OSError as error:
            return f"TVM's CUDA runtime does not load: {error}"
    if not tvm.runtime.cuda(0).exist:
        return "the NVIDIA driver shows no GPU"
    return ""


def missing(sm: int) -> str:
    """What this machine lacks to run code for a GPU; empty when nothing.

    Args:
        sm: Compute capability of that GPU, times ten.
    """
    import tvm

    wanted = f"a GPU of compute capability {sm // 10}.{sm % 10}"
    if problem():
        return LIBRARY if LIBRARY in problem() else wanted
    version = str(tvm.runtime.cuda(0).compute_version)
    return "" if version == f"{sm // 10}.{sm % 10}" else wanted


def describe() -> str:
    """This machine's first GPU and its driver, e.g. ``"NVIDIA H200, driver for CUDA 13.0"``.

    Empty where this process can use none.
    """
    if problem():
        return ""
    import tvm

    version = ctypes.c_int()
    ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    number = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return f"{tvm.runtime.cuda(0).device_name}, driver for CUDA {number}"


def load_library() -> bool:
    """Load CUDA's runtime library, the system's or PyPI's; whether there is one."""
    return _loads(LIBRARY) or any(_loads(str(path)) for path in _wheels())


def _wheels() -> Iterator[Path]:
    """Where packages of PyPI put CUDA's runtime library."""
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for folder in (found.submodule_search_locations or ()) if found else ():
        yield from sorted(Path(folder).glob(f"*/lib/{LIBRARY}"))


def _has_driver() -> bool:
    try:  # what stands in for it where kernels are built has no such function
        return hasattr(ctypes.CDLL(DRIVER), "cuInit")
    except OSError:
        return False


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
