"""The ``tvmopt`` MLflow flavor: save, log, load and serve compiled models.

Two flavors are written: ``tvmopt`` (native), loaded as :class:`tvmopt.runtime.CompiledModel`, and
``python_function`` for MLflow's generic tools. The model carries the code that loads it, so that it
can be used where this package is not installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import yaml
from mlflow import MlflowClient, pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME, ModelInfo
from mlflow.models.utils import ModelInputExample, _save_example
from mlflow.store.artifact.models_artifact_repo import REGISTERED_MODEL_META_FILE_NAME
from mlflow.store.artifact.utils.models import get_model_name_and_version
from mlflow.tracking.artifact_utils import _download_artifact_from_uri
from mlflow.types import Schema
from mlflow.types import TensorSpec as MlflowTensorSpec
from mlflow.utils.environment import (
    _CONDA_ENV_FILE_NAME,
    _PYTHON_ENV_FILE_NAME,
    _validate_env_arguments,
)
from mlflow.utils.model_utils import (
    _validate_and_copy_code_paths,
    _validate_and_prepare_target_save_path,
)

import tvmopt
from tvmopt.digest import PYTHON_CACHE, sha256_file, sha256_tree
from tvmopt.errors import ArtifactError
from tvmopt.runtime import CompiledModel, ModelMetadata, load
from tvmopt.runtime.bundle import copy_bundle
from tvmopt.runtime.categories import Categories
from tvmopt.runtime.checks import open_checked
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE, TensorSpec
from tvmopt.runtime.model import read_golden
from tvmopt.tracking.flavor.as_source import example_of, signature_of
from tvmopt.tracking.flavor.environment import (
    get_default_conda_env as get_default_conda_env,
)
from tvmopt.tracking.flavor.environment import (
    get_default_pip_requirements,
    write_environment,
)
from tvmopt.tracking.flavor.python_model import REQUIRE_FINITE, CompiledPyFunc
from tvmopt.tracking.flavor.verify import FLAVOR_NAME, generic_sha256, read_mlmodel, verify_model

_DATA = "compiled"
_EXAMPLE_LIMIT = 100_000
# Folder of the package whose files no model needs.
_EXAMPLES = "examples"


def save_model(
    tvmopt_model: str | Path,
    path: str | Path,
    conda_env: Any = None,
    code_paths: list[str] | None = None,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: ModelInputExample | None = None,
    pip_requirements: list[str] | None = None,
    extra_pip_requirements: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
    validate_serving_input: bool = True,  # read by Model.log
) -> None:
    """Save a compiled model as an MLflow model.

    Args:
        tvmopt_model: Folder with library, metadata and golden file, as the build stage wrote it.
        path: Folder to create.
        conda_env: See MLflow; by default the pinned requirements.
        code_paths: Code to ship; by default this package.
        mlflow_model: The :class:`mlflow.models.Model` this flavor is added to.
        signature: By default the signature of the compiled model.
        input_example: By default the golden input, when it is small.
        pip_requirements: See MLflow.
        extra_pip_requirements: See MLflow.
        metadata: Free metadata for the MLmodel file.
        validate_serving_input: Whether MLflow tries the input example when the model is logged.
    """
    _validate_env_arguments(conda_env, pip_requirements, extra_pip_requirements)
    bundle = Path(tvmopt_model)
    model = ModelMetadata.read(bundle)
    path = Path(path).resolve()
    _validate_and_prepare_target_save_path(str(path))
    package = Path(tvmopt.__file__).parent
    code = _validate_and_copy_code_paths(code_paths or [str(package)], str(path))
    if not code_paths:
        shutil.rmtree(path / str(code) / package.name / _EXAMPLES)
    _keep_caches_out(path / str(code))
    (path / _DATA).mkdir()
    copy_bundle(bundle, path / _DATA)
    open_checked(path / _DATA / LIBRARY_FILE, model.library_sha256).close()
    open_checked(path / _DATA / GOLDEN_FILE, model.golden_sha256).close()

    mlflow_model = mlflow_model or Model()
    mlflow_model.signature = signature or model_signature(model)
    example = input_example if input_example is not None else _small_example(bundle, model)
    if example is not None:
        _save_example(mlflow_model, example, str(path))
    if metadata is not None:
        mlflow_model.metadata = metadata
    pyfunc.add_to_model(
        mlflow_model,
        loader_module="tvmopt.tracking.flavor",
        data=_DATA,
        conda_env=_CONDA_ENV_FILE_NAME,
        python_env=_PYTHON_ENV_FILE_NAME,
        code=code,
        model_config={REQUIRE_FINITE: False},
    )
    mlflow_model.add_flavor(
        FLAVOR_NAME,
        data=_DATA,
        code=code,
        tvm_version=model.tvm_version,
        target=model.target,
        host_cpu=model.host_cpu,
        threads=model.threads,
        metadata_sha256=sha256_file(bundle / METADATA_FILE),
        library_sha256=model.library_sha256,
        golden_sha256=model.golden_sha256,
        code_sha256=sha256_tree(path / str(code)),
        digest=model.digest,
    )
    mlflow_model.model_size_bytes = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    default = get_default_pip_requirements(
        bool(model.gpu), bool(model.segments), native=model.native
    )
    write_environment(path, conda_env, pip_requirements, extra_pip_requirements, default)
    mlflow_model.save(str(path / MLMODEL_FILE_NAME))
    # Of the file, so that it is the same after YAML has been written and read.
    found = generic_sha256(path, read_mlmodel(path))
    mlflow_model.flavors[FLAVOR_NAME]["generic_sha256"] = found
    mlflow_model.save(str(path / MLMODEL_FILE_NAME))


def log_model(
    tvmopt_model: str | Path,
    name: str = "model",
    registered_model_name: str | None = None,
    run_id: str | None = None,
    **kwargs: Any,
) -> ModelInfo:
    """Log a compiled model to a run; other arguments as :func:`save_model`."""
    import tvmopt.tracking.flavor as flavor

    return Model.log(
        artifact_path=None,
        name=name,
        flavor=flavor,
        registered_model_name=registered_model_name,
        run_id=run_id,
        tvmopt_model=tvmopt_model,
        # Checked by the build stage already, on the same file.
        validate_serving_input=False,
        **kwargs,
    )


def load_model(model_uri: str, dst_path: str | None = None) -> CompiledModel:
    """Load the native flavor from any MLflow model URI.

    The code that the model carries is not run. A model of the registry must have the hashes with
    which it was registered.

    Raises:
        ArtifactError: When hash, TVM version or CPU do not fit; the library is not opened then.
    """
    tags = None
    if model_uri.startswith("models:/") and not model_uri.startswith("models:/m-"):
        client = MlflowClient()
        name, version = get_model_name_and_version(client, model_uri)
        tags = client.get_model_version(name, version).tags
        model_uri = f"models:/{name}/{version}"  # an alias may move meanwhile
    local = _download_artifact_from_uri(artifact_uri=model_uri, output_path=dst_path)
    return _load_checked(Path(local), tags)


def download(model_uri: str, download_to: Path) -> Path:
    """Copy a saved model below ``download_to``, also from a local store."""
    return Path(_download_artifact_from_uri(model_uri, output_path=str(download_to)))


def model_signature(model: ModelMetadata) -> ModelSignature:
    """Return the MLflow signature of a compiled model: its source's, if that had one.

    An extent that calls choose is -1.
    """
    if model.interface is not None and (found := signature_of(model.interface)) is not None:
        return found

    def schema(side: Sequence[TensorSpec]) -> Schema:
        return Schema(
            [
                MlflowTensorSpec(np.dtype("str" if t.categories else t.dtype), t.shape, t.name)
                for t in side
            ]
        )

    return ModelSignature(inputs=schema(model.open_inputs), outputs=schema(model.open_outputs))


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> CompiledPyFunc:
    saved = Path(path).parent
    model = _load_checked(saved, _tags_where_it_is_registered(saved))
    return CompiledPyFunc(model, bool((model_config or {}).get(REQUIRE_FINITE, False)))


def _load_checked(saved: Path, tags: Mapping[str, str] | None) -> CompiledModel:
    verified = verify_model(saved, tags)
    return load(verified.bundle, verified.metadata_sha256)


def _tags_where_it_is_registered(saved: Path) -> Mapping[str, str] | None:
    """Tags of the version that MLflow has just fetched into ``saved``, by the file it leaves there.

    None where no tracking server is named, as in a container that holds the model alone.
    """
    path = saved / REGISTERED_MODEL_META_FILE_NAME
    if not path.is_file() or not mlflow.is_tracking_uri_set():
        return None
    try:
        found = yaml.safe_load(path.read_bytes())
        name, version = str(found["model_name"]), str(found["model_version"])
        return MlflowClient().get_model_version(name, version).tags
    except (MlflowException, yaml.YAMLError, KeyError, TypeError) as error:
        raise ArtifactError(
            "the hashes of a registered model must be compared with the registry, but it does not "
            f"answer ({' '.join(str(error).split())[:200]}); unset MLFLOW_TRACKING_URI to load "
            f"the files as they are, or delete '{path.name}'"
        ) from error


def _keep_caches_out(code: Path) -> None:
    """Put a file where Python would make a folder for compiled code, which could be exchanged.

    MLflow imports the code from where it lies, in a local artifact store. Python then compiles it
    in memory.
    """
    folders = [code, *(p for p in code.rglob("*") if p.is_dir() and p.name != PYTHON_CACHE)]
    for folder in folders:
        cache = folder / PYTHON_CACHE
        shutil.rmtree(cache, ignore_errors=True)
        cache.write_text("This file keeps Python from caching compiled code here.\n")


def _small_example(bundle: Path, model: ModelMetadata) -> ModelInputExample | None:
    # An example is stored as JSON; for an image of a megabyte the golden file serves as well.
    inputs, _ = read_golden(bundle, model)
    for spec in model.inputs:
        if spec.categories:
            codes = inputs[spec.name]
            inputs[spec.name] = Categories(spec.name, spec.categories).decode(codes)
    if model.interface is not None:
        return example_of(model.interface, inputs)
    if sum(a.size for a in inputs.values()) > _EXAMPLE_LIMIT:
        return None
    return inputs if len(inputs) > 1 else next(iter(inputs.values()))
