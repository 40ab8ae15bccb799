"""The ``tvmopt`` MLflow flavor: save, log, load and serve compiled models.

Two flavors are written: ``tvmopt`` (native), loaded as :class:`tvmopt.runtime.CompiledModel`, and
``python_function`` for MLflow's generic tools. The model carries the code that loads it, so that it
can be used where this package is not installed.
"""

from __future__ import annotations

import inspect
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
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.store.artifact.models_artifact_repo import REGISTERED_MODEL_META_FILE_NAME
from mlflow.store.artifact.utils.models import get_model_name_and_version
from mlflow.tracking.artifact_utils import _download_artifact_from_uri
from mlflow.types import Schema
from mlflow.types import TensorSpec as MlflowTensorSpec
from mlflow.utils.environment import (
    _CONDA_ENV_FILE_NAME,
    _CONSTRAINTS_FILE_NAME,
    _PYTHON_ENV_FILE_NAME,
    _REQUIREMENTS_FILE_NAME,
    _mlflow_conda_env,
    _process_conda_env,
    _process_pip_requirements,
    _PythonEnv,
    _validate_env_arguments,
)
from mlflow.utils.file_utils import write_to
from mlflow.utils.model_utils import (
    _validate_and_copy_code_paths,
    _validate_and_prepare_target_save_path,
)

import tvmopt
from tvmopt.device.cuda_runtime import PACKAGE
from tvmopt.digest import PYTHON_CACHE, sha256_file, sha256_tree
from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.printable import one_line
from tvmopt.runtime import CompiledModel, ModelMetadata, Outputs, load
from tvmopt.runtime.bundle import copy_bundle
from tvmopt.runtime.categories import Categories
from tvmopt.runtime.checks import open_checked
from tvmopt.runtime.interface import SourceInterface
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE, TensorSpec
from tvmopt.runtime.model import read_golden
from tvmopt.tracking.flavor.as_source import example_of, signature_of
from tvmopt.tracking.flavor.verify import FLAVOR_NAME, generic_sha256, read_mlmodel, verify_model
from tvmopt.versions import TVM_FFI_VERSION, TVM_VERSION

_DATA = "compiled"
#: Option of the pyfunc flavor: refuse inputs and outputs that hold NaN or an infinity.
REQUIRE_FINITE = "require_finite"
_EXAMPLE_LIMIT = 100_000
# Folder of the package whose files no model needs.
_EXAMPLES = "examples"


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
    _write_environment(path, conda_env, pip_requirements, extra_pip_requirements, default)
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


class RefusedInputError(ConfigError, MlflowException):
    """The inputs of a call do not fit; MLflow's scoring server answers 400 with the message."""

    def __init__(self, message: str) -> None:
        MlflowException.__init__(self, one_line(message), error_code=INVALID_PARAMETER_VALUE)


class CompiledPyFunc:
    """Python model that :func:`mlflow.pyfunc.load_model` wraps.

    Args:
        model: The compiled model.
        require_finite: Whether inputs and outputs with NaN or infinities are refused.
    """

    def __init__(self, model: CompiledModel, require_finite: bool = False) -> None:
        self._model = model
        self._require_finite = require_finite
        self._single = len(model.metadata.outputs) == 1

    def predict(self, data: Any) -> Any:
        """Return the outputs in ONNX order; the array itself for a single output.

        A model whose source is no ONNX model takes and returns what its source does.

        Raises:
            RefusedInputError: When an input does not fit. With ``require_finite``, also when an
                input or an output holds NaN or an infinity.
        """
        try:
            if self._model.metadata.interface is not None:
                return self._predict_as_source(data, self._model.metadata.interface)
            return self._predict(_plain(data, self._model.metadata.inputs))
        except ConfigError as error:
            raise RefusedInputError(str(error)) from error

    def _predict_as_source(self, data: Any, interface: SourceInterface) -> Any:
        """Return the answer that the source of the model gives."""
        inputs = interface.inputs(data, {s.name: s.dtype for s in self._model.metadata.inputs})
        if self._require_finite:
            for name, array in inputs.items():
                check_finite(f"input {name!r}", array)
        answer = interface.result(dict(self._model(inputs).items()), getattr(data, "index", None))
        if self._require_finite:
            check_finite("the answer", np.asarray(answer))
        return answer

    def _predict(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray | Outputs:
        if self._require_finite:
            named = inputs.items() if isinstance(inputs, Mapping) else [("", inputs)]
            for name, array in named:
                check_finite(f"input {name!r}" if name else "the input", np.asarray(array))
        outputs = self._model(inputs)
        if self._require_finite:
            for name, array in outputs.items():
                check_finite(f"output {name!r}", array)
        return outputs[0] if self._single else outputs

    def get_raw_model(self) -> CompiledModel:
        """Return the model without MLflow's wrapper."""
        return self._model


# MLflow asks inspect for the signature at every call, which would make it anew each time.
CompiledPyFunc.predict.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    CompiledPyFunc.predict
)


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


def check_finite(what: str, array: np.ndarray) -> None:
    """Raise :class:`ConfigError` if ``array`` holds NaN or an infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise ConfigError(
            f"{what} must be finite (option {REQUIRE_FINITE}), but {bad} of {array.size} values "
            "are NaN or infinite"
        )


def _plain(data: Any, inputs: Sequence[TensorSpec]) -> np.ndarray | Mapping[str, np.ndarray]:
    """Return arrays of NumPy arrays, mappings, lists or a pandas table.

    A column of a table is an input of its name; the columns of other names are the features of a
    model with one input of two axes.
    """
    if isinstance(data, np.ndarray | Mapping):
        return data
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas, from MLflow's tools
        features = len(inputs) == 1 and len(inputs[0].shape) == 2
        if features and inputs[0].name not in data.columns:
            return np.asarray(data.to_numpy())
        if len(data.columns) == 1:
            return np.asarray(data.iloc[:, 0].tolist())
        return {str(name): np.asarray(data[name].tolist()) for name in data.columns}
    return np.asarray(data)


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


def _write_environment(
    path: Path,
    conda_env: Any,
    pip_requirements: Any,
    extra_pip_requirements: Any,
    default: list[str],
) -> None:
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
