"""The versions this package is pinned to, and the check that refuses a pair known to crash."""

from __future__ import annotations

import importlib.metadata

from tvmopt.errors import EnvironmentSetupError

VERSION = "0.1.0"
TVM_VERSION = "0.27.0.post1"
TVM_FFI_VERSION = "0.1.14.post1"


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def tvm_problem() -> str | None:
    """What is wrong with the installed TVM pair, as one line with its cure; None when right."""
    cure = (
        f'run: pip install "apache-tvm=={TVM_VERSION}" "apache-tvm-ffi=={TVM_FFI_VERSION}"'
    )
    tvm, ffi = installed("apache-tvm"), installed("apache-tvm-ffi")
    if tvm is None or ffi is None:
        missing = "apache-tvm" if tvm is None else "apache-tvm-ffi"
        return f"{missing} must be installed, but it is not; {cure}"
    if tvm != TVM_VERSION:
        return f"apache-tvm must be {TVM_VERSION}, but got {tvm}; {cure}"
    if ffi != TVM_FFI_VERSION:
        return (
            f"apache-tvm-ffi must be {TVM_FFI_VERSION} (0.1.15 crashes on every IR serialisation), "
            f"but got {ffi}; {cure}"
        )
    return None


def require_tvm() -> None:
    """Raise :class:`EnvironmentSetupError` unless the pinned TVM pair is installed."""
    problem = tvm_problem()
    if problem:
        raise EnvironmentSetupError(problem)
