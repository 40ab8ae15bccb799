"""Check the installation: abilities of this machine, and every problem with its cure."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tvmopt import host
from tvmopt.device import cuda_runtime
from tvmopt.errors import TvmoptError
from tvmopt.kernels.cuda.toolchain import compiler
from tvmopt.versions import (
    PYTHON_VERSIONS,
    VERSION,
    installed,
    python_versions,
    requirement,
    tvm_problem,
)

_PACKAGES = (
    "apache-tvm", "apache-tvm-ffi", "mlflow", "optuna", "onnx", "onnxruntime", "numpy",
    "scikit-learn",
)  # fmt: skip
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_SHOWN = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
          "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16", "sve")  # fmt: skip


def main() -> int:
    """Print the report; returns 1 when there is a problem."""
    problems: list[str] = []
    _line("tvmopt", f"{VERSION} at {Path(__file__).parent}")
    _line("python", f"{platform.python_version()} at {sys.executable}")
    if sys.version_info[:2] not in PYTHON_VERSIONS:
        problems.append(
            f"Python must be {python_versions()}, but got {platform.python_version()}; "
            "install one of these"
        )
    for name in _PACKAGES:
        version = installed(name)
        _line(name, version or "not installed")
        if version is None and not name.startswith("apache-tvm"):
            problems.append(
                f'{name} must be installed, but it is not; run: pip install "{requirement(name)}"'
            )
    problem = tvm_problem()
    if problem:
        problems.append(problem)
    _line("cpu", f"{host.cpu_model()}, {host.usable_cores()} usable core(s)")
    if problem:
        _line("target", "unknown: TVM cannot be used")
    else:
        _target(problems)
        _gpu(problems)
    _threads(problems)
    _compiler(problems)
    _store(problems)
    print()
    if not problems:
        print("no problems found")
        return 0
    print(f"{len(problems)} problem(s):")
    for number, text in enumerate(problems, 1):
        print(f"  {number}. {text}")
    return 1


def _target(problems: list[str]) -> None:
    try:
        from tvmopt.device.features import vector_registers
        from tvmopt.device.target import resolve_target

        target = resolve_target("host")
    except Exception as error:  # whatever goes wrong is the finding
        problems.append(f"TVM must import and know this CPU, but it does not: {error}")
        _line("target", "unknown")
        return
    bits, _ = vector_registers(target.isa, target.cpu_flags)
    features = [f for f in _SHOWN if f in target.cpu_flags]
    _line("target", f"{target.mcpu} ({target.isa}), {bits}-bit vectors")
    _line("features", ", ".join(features) or "none of interest")


def _gpu(problems: list[str]) -> None:
    """The GPU, and what compiles for GPUs here or elsewhere; nobody must have either."""
    try:
        why, compiles = cuda_runtime.problem(), compiler.version()
    except TvmoptError as error:
        why, compiles = cuda_runtime.problem(), f"none: {error}"
    _line("gpu", cuda_runtime.describe() or f"none: {why}")
    if not why:
        _line("gpu constants", _constants(problems))
    _line("cuda compiler", compiles)
    if cuda_runtime.CURE in why:
        problems.append(f"this machine's GPU cannot be used: {why}")


def _constants(problems: list[str]) -> str:
    """Where the constants of this machine's GPU come from; a GPU without kernels is a problem."""
    from tvmopt.device.cuda import probe
    from tvmopt.device.gpus import constants_words

    try:
        return constants_words(probe())
    except TvmoptError as error:
        problems.append(str(error))
        return "none"


def _threads(problems: list[str]) -> None:
    cores = host.usable_cores()
    setting = os.environ.get("TVM_NUM_THREADS")
    if setting is None:
        _line("threads", f"{cores} (tvmopt sets TVM_NUM_THREADS for its own processes)")
        alone = max(1, cores // 2)
        if cores > 1:
            print(
                f"{'':<16}TVM on its own would use {alone} of {cores}: set TVM_NUM_THREADS={cores} "
                "in programs that use TVM without tvmopt"
            )
        return
    _line("threads", f"TVM_NUM_THREADS={setting}")
    if not setting.isdigit() or int(setting) < 1:
        problems.append(
            f"TVM_NUM_THREADS must be a number of at least 1, but got {setting!r}; unset it"
        )
    elif int(setting) != cores:
        problems.append(
            f"TVM_NUM_THREADS should be the {cores} usable core(s), but got {setting}; unset it or "
            f"set TVM_NUM_THREADS={cores}"
        )


def _compiler(problems: list[str]) -> None:
    # What tvm.support.cc.get_cc takes, without importing TVM.
    chosen = os.environ.get("CXX") or os.environ.get("CC")
    path = next(filter(None, map(shutil.which, [chosen] if chosen else _COMPILERS)), None)
    if path is None:
        _line("c++ compiler", "none")
        missing = f"'{chosen}' of CXX or CC is not there" if chosen else "none was found"
        problems.append(
            f"a C++ compiler must be there to link libraries, but {missing}; install g++ "
            "(Debian: apt-get install g++) or set CXX to one"
        )
        return
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    _line("c++ compiler", f"{path} ({(done.stdout.splitlines() or ['?'])[0]})")


def _store(problems: list[str]) -> None:
    try:
        from tvmopt.tracking.store.mlflow_store import tracking_uri

        uri = tracking_uri()
    except Exception as error:  # whatever goes wrong is the finding
        _line("tracking store", "unknown")
        problems.append(f"MLflow must import, but it does not: {error}")
        return
    _line("tracking store", uri)
    if uri.startswith("sqlite:///"):
        folder = Path(uri.removeprefix("sqlite:///")).parent
        if not os.access(folder, os.W_OK):
            problems.append(
                f"the folder of the tracking store must be writable, but '{folder}' is not; set "
                "MLFLOW_TRACKING_URI"
            )
    elif uri.startswith(("http://", "https://")):
        import requests

        try:
            requests.get(f"{uri.rstrip('/')}/health", timeout=5).raise_for_status()
        except requests.RequestException as error:
            problems.append(
                f"the tracking server must answer, but {uri} does not ({type(error).__name__}); "
                "start it or set MLFLOW_TRACKING_URI"
            )
    elif uri.startswith(("file:", "/")) or "://" not in uri:
        problems.append(
            f"the tracking store must be a database or a server, but got {uri}: MLflow refuses "
            "file stores; set MLFLOW_TRACKING_URI=sqlite:///mlflow.db"
        )


def _line(name: str, text: str) -> None:
    print(f"{name:<16}{text}")
