"""tvmopt: from an ONNX model to the fastest compiled artifact that keeps its accuracy.

Importing this package is cheap. :func:`tvmopt.compile` takes a model to a compiled one in one
call. The entry points are functions of :mod:`tvmopt.workflow`, which needs MLflow; the compiler
half (``frontend``, ``transform``, ``kernels``, ``tune``, ``build``, ``runtime``) needs neither
MLflow nor Optuna.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from tvmopt.errors import EnvironmentSetupError, TvmoptError
from tvmopt.versions import VERSION, wrong_tvm

__all__ = ["CompiledModel", "TvmoptError", "__version__", "compile", "load"]

__version__ = VERSION


class _WrongPackagesError(EnvironmentSetupError, ImportError):
    """An ImportError, so that MLflow goes on without our plugin where packages are wrong."""


def _is_command() -> bool:
    """Whether this process is the command ``tvmopt``, which says in one line what is wrong."""
    words = [*sys.orig_argv[1:3], "", ""]
    return words[:2] == ["-m", "tvmopt"] or Path(words[0]).name == "tvmopt"


# A wrong pair of wheels would crash much later, with nothing said. The doctor must still run, and a
# native model runs where there is no TVM at all.
if (_problem := wrong_tvm()) and not _is_command():
    raise _WrongPackagesError(_problem)


def __getattr__(name: str) -> Any:
    if name == "compile":
        return importlib.import_module("tvmopt.api").compile
    if name in ("CompiledModel", "load"):
        return getattr(importlib.import_module("tvmopt.runtime"), name)
    raise AttributeError(f"module 'tvmopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
