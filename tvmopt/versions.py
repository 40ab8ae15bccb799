"""The versions this package is pinned to, and the check that refuses a pair known to crash."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from tvmopt.errors import EnvironmentSetupError

VERSION = "0.2.0"
PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""Versions of Python that the package is tested with."""
TVM_VERSION = "0.27.0.post1"
TVM_FFI_VERSION = "0.1.14.post1"
_MODULES = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
_CURE = f'run: pip install "apache-tvm=={TVM_VERSION}" "apache-tvm-ffi=={TVM_FFI_VERSION}"'


def python_versions() -> str:
    """Versions of Python that the package supports, in words."""
    first, last = PYTHON_VERSIONS[0], PYTHON_VERSIONS[-1]
    return f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirement(distribution: str) -> str:
    """Versions of a dependency that this package takes, as pip reads them: ``optuna<6,>=5.0``."""
    try:
        found = importlib.metadata.requires("tvmopt") or []
    except importlib.metadata.PackageNotFoundError:  # a copied tree has no metadata
        return distribution
    named = re.compile(rf"{re.escape(distribution)}(?![\w.-])")
    return next((line for line in found if named.match(line)), distribution)


def tvm_problem() -> str | None:
    """Why the TVM pair cannot be used, as one line with its cure; None when it can."""
    for name, module in _MODULES.items():
        if installed(name) is None and importlib.util.find_spec(module) is None:
            return f"{name} must be installed, but it is not; {_CURE}"
    return wrong_tvm()


def wrong_tvm() -> str | None:
    """Return the problem with the versions of the TVM pair; None where they are right, or missing.

    A TVM without package metadata, as a copied tree has none, is taken as it is.
    """
    tvm, ffi = installed("apache-tvm"), installed("apache-tvm-ffi")
    if tvm not in (None, TVM_VERSION):
        return f"apache-tvm must be {TVM_VERSION}, but got {tvm}; {_CURE}"
    if ffi not in (None, TVM_FFI_VERSION):
        return (
            f"apache-tvm-ffi must be {TVM_FFI_VERSION} (0.1.15 crashes on every IR serialisation), "
            f"but got {ffi}; {_CURE}"
        )
    return None


def tvm_version() -> str:
    """Version of the TVM that this process uses.

    Raises:
        EnvironmentSetupError: When it cannot be used.
    """
    require_tvm()
    version = installed("apache-tvm")
    if version is None:
        import tvm

        version = str(tvm.__version__)
    return version


def require_tvm() -> None:
    """Raise :class:`EnvironmentSetupError` unless the pinned TVM pair is installed."""
    problem = tvm_problem()
    if problem:
        raise EnvironmentSetupError(problem)
