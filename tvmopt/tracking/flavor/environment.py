"""The Python environment that a saved model names: requirements and environment files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mlflow.utils.environment import (
    _CONDA_ENV_FILE_NAME,
    _CONSTRAINTS_FILE_NAME,
    _PYTHON_ENV_FILE_NAME,
    _REQUIREMENTS_FILE_NAME,
    _mlflow_conda_env,
    _process_conda_env,
    _process_pip_requirements,
    _PythonEnv,
)
from mlflow.utils.file_utils import write_to

from tvmopt.device.cuda_runtime import PACKAGE
from tvmopt.versions import TVM_FFI_VERSION, TVM_VERSION


def get_default_pip_requirements(
    gpu: bool = False, segments: bool = False, native: bool = False
) -> list[str]:
    """Packages that a saved model needs: NumPy and TVM's pinned pair, beside MLflow itself.

    Args:
        gpu: Whether it was built for a GPU: then CUDA's runtime library, too.
        segments: Whether parts of it run in ONNX Runtime: then that, too.
        native: Whether its library is native code, which needs no TVM.
    """
    tvm = [f"apache-tvm=={TVM_VERSION}", f"apache-tvm-ffi=={TVM_FFI_VERSION}"]
    return [
        *([] if native else tvm),
        f"numpy=={np.__version__}",
        *([PACKAGE] if gpu else []),
        *(["onnxruntime"] if segments else []),
    ]


def get_default_conda_env() -> dict[str, Any]:
    """Conda environment with :func:`get_default_pip_requirements`."""
    env: dict[str, Any] = _mlflow_conda_env(additional_pip_deps=get_default_pip_requirements())
    return env


def write_environment(
    path: Path,
    conda_env: Any,
    pip_requirements: Any,
    extra_pip_requirements: Any,
    default: list[str],
) -> None:
    """Write the environment files of a saved model into its folder.

    Args:
        path: The folder.
        conda_env: See MLflow; None to name requirements instead.
        pip_requirements: See MLflow; None for ``default``.
        extra_pip_requirements: See MLflow.
        default: The model's own requirements.
    """
    if conda_env is None:
        conda_env, requirements, constraints = _process_pip_requirements(
            default if pip_requirements is None else None, pip_requirements, extra_pip_requirements
        )
    else:
        conda_env, requirements, constraints = _process_conda_env(conda_env)
    with (path / _CONDA_ENV_FILE_NAME).open("w") as file:
        yaml.safe_dump(conda_env, stream=file, default_flow_style=False)
    if constraints:
        write_to(str(path / _CONSTRAINTS_FILE_NAME), "\n".join(constraints))
    write_to(str(path / _REQUIREMENTS_FILE_NAME), "\n".join(requirements))
    _PythonEnv.current().to_yaml(str(path / _PYTHON_ENV_FILE_NAME))
