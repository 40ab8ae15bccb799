"""Find and load the CUDA runtime of this process; report what is missing.

TVM loads its CUDA runtime on import if the dynamic linker finds the NVIDIA driver and libcudart.
libcudart may also come from the PyPI package ``nvidia-cuda-runtime``, where only this module finds
it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

DRIVER = "libcuda.so.1"
#: The libcudart that TVM's wheel is linked with.
LIBRARY = "libcudart.so.13"
#: The PyPI package that contains it.
PACKAGE = "nvidia-cuda-runtime>=13,<14"
#: Advice for error messages when it is missing.
CURE = f'install CUDA 13\'s toolkit, or run: pip install "{PACKAGE}"'
_DEVICE_API = "device_api.cuda"


@functools.cache
def problem() -> str:
    """Return why this process cannot use an NVIDIA GPU; empty if it can.

    Loads TVM's CUDA runtime if it is not loaded yet.
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
    """Return what this machine lacks to run code for a GPU; empty if nothing.

    Args:
        sm: Compute capability of the GPU, times ten.
    """
    import tvm

    wanted = f"a GPU of compute capability {sm // 10}.{sm % 10}"
    if problem():
        return LIBRARY if LIBRARY in problem() else wanted
    version = str(tvm.runtime.cuda(0).compute_version)
    return "" if version == f"{sm // 10}.{sm % 10}" else wanted


def describe() -> str:
    """Return this machine's first GPU and driver, e.g. ``"NVIDIA H200, driver for CUDA 13.0"``.

    The text is empty if this process cannot use a GPU.
    """
    if problem():
        return ""
    import tvm

    version = ctypes.c_int()
    ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    number = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return f"{tvm.runtime.cuda(0).device_name}, driver for CUDA {number}"


def load_library() -> bool:
    """Load libcudart from the system or from PyPI packages; return whether that succeeded."""
    return _loads(LIBRARY) or any(_loads(str(path)) for path in _wheels())


def _wheels() -> Iterator[Path]:
    """Yield the paths of libcudart in installed PyPI packages."""
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for folder in (found.submodule_search_locations or ()) if found else ():
        yield from sorted(Path(folder).glob(f"*/lib/{LIBRARY}"))


def _has_driver() -> bool:
    try:  # the stub driver on build machines has no such function
        return hasattr(ctypes.CDLL(DRIVER), "cuInit")
    except OSError:
        return False


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
