"""Compile CUDA source to a cubin of one GPU architecture, with nvcc or NVRTC.

Either takes about half a second a kernel, mostly for headers; :mod:`.fast_nvcc` takes a tenth.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import threading

from tvmopt.device.cuda import CudaArch
from tvmopt.environment import variable
from tvmopt.errors import BuildError, EnvironmentSetupError
from tvmopt.kernels.cuda.toolchain.fast_nvcc import LeanError, lean_compiler
from tvmopt.versions import installed

#: TVM's environment variable that selects the compiler.
MODE = "TVM_CUDA_COMPILE_MODE"


@functools.cache
def compiler() -> str:
    """Return ``"nvcc"`` or ``"nvrtc"``: the one in ``TVM_CUDA_COMPILE_MODE``, or the first found.

    Raises:
        EnvironmentSetupError: When neither is installed, or not the selected one.
    """
    found = {
        "nvcc": shutil.which("nvcc") is not None,
        "nvrtc": _has_nvrtc(),
    }
    wanted = os.environ.get(MODE, "").lower()
    if wanted and wanted not in found:
        raise EnvironmentSetupError(f"{MODE} must be nvcc or nvrtc, but got {wanted!r}")
    usable = [name for name, here in found.items() if here and wanted in ("", name)]
    if not usable:
        raise EnvironmentSetupError(
            f"{wanted or 'nvcc or nvrtc'} must be installed to build for a CUDA GPU, but is not; "
            "install CUDA's toolkit (nvcc), or the PyPI packages cuda-bindings and "
            "nvidia-cuda-nvrtc beside CUDA's headers"
        )
    return usable[0]


@functools.cache
def version() -> str:
    """Return the compiler and its version, for example ``"nvcc 13.0.88"``.

    Raises:
        EnvironmentSetupError: When :func:`compiler` finds none.
    """
    which = compiler()
    if which == "nvcc":
        done = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\bV([\d.]+)", done.stdout)
        return f"nvcc {found.group(1) if found else 'of an unknown version'}"
    return f"nvrtc {installed('nvidia-cuda-nvrtc') or 'of an unknown version'}"


def _has_nvrtc() -> bool:
    """Whether NVRTC and CUDA's headers are installed."""
    try:
        if importlib.util.find_spec("cuda.bindings.nvrtc") is None:
            return False
    except ModuleNotFoundError:
        return False
    try:
        from tvm.support.nvcc import find_cuda_path

        find_cuda_path()  # NVRTC comes without headers
    except (RuntimeError, OSError):  # no path, or no ``which`` to look for nvcc
        return False
    return True


def compile_cubin(source: str, arch: CudaArch) -> bytes:
    """Compile ``source`` to a cubin; several threads may do so at once.

    Args:
        source: CUDA source, as TVM generates it.
        arch: The GPU.

    Returns:
        The cubin.

    Raises:
        BuildError: With the compiler's first error message.
        EnvironmentSetupError: When there is no compiler.
    """
    from tvm.support.nvcc import compile_cuda

    which = compiler()
    suffix = arch.arch.removeprefix("sm_")
    option = ["-gencode", f"arch=compute_{suffix},code=sm_{suffix}"]
    lean = lean_compiler((*option, *_nvcc_options())) if which == "nvcc" else None
    if lean is not None:
        with contextlib.suppress(LeanError):  # nvcc below reports the error, if there is one
            return lean.cubin(source)
    try:
        # else TVM passes --use_fast_math to nvcc
        with _ENVIRONMENT, arch.to_tvm(), variable(_NO_FAST_MATH, "1"):
            code = compile_cuda(
                source,
                target_format="cubin",
                arch=[*option, *_FAST] if which == "nvcc" else arch.arch,
                compiler=which,
            )
    except RuntimeError as error:
        raise BuildError(
            f"{which} refused a kernel: {first_complaint(str(error))}"
            "; run tvmopt doctor, and report the kernel if it finds nothing"
        ) from error
    return bytes(code)


# Approximate division and square root, denormals flushed to zero. Not --use_fast_math: its math
# functions err by 5e-4 (tanh), and its powers fail for negative bases.
_FAST = ("--ftz=true", "--prec-div=false", "--prec-sqrt=false")
_NO_FAST_MATH = "TVM_CUDA_NVCC_NO_FAST_MATH"
_ENVIRONMENT = threading.Lock()  # kernels are compiled by several threads


def _nvcc_options() -> tuple[str, ...]:
    """Return TVM's nvcc options, without those that only change the log."""
    from tvm.support.nvcc import _ptxas_option_flags

    quiet = ("-v", "--warn-on-local-memory-usage")
    told = ",".join(flag for flag in _ptxas_option_flags() if flag not in quiet)
    return ("-O3", "--expt-relaxed-constexpr", *_FAST, *((f"--ptxas-options={told}",) * bool(told)))


def first_complaint(log: str) -> str:
    """Return the first line of a compiler log that reports an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"(\berror\b.*:|\bfatal\b).*\S", line)]
    wrong = [line for line in wrong if not line.endswith("error:")]
    return (wrong or lines or ["no message"])[0][-300:]
