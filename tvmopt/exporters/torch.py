"""PyTorch models to ONNX, by ``torch.onnx.export(dynamo=True)``."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import ConfigError, ModelError, in_one_line
from tvmopt.exporters.boosted import matrix_columns
from tvmopt.exporters.exported import ROWS, Exported
from tvmopt.exporters.packages import require_packages
from tvmopt.exporters.pt2_check import plain_tensors_only, why_not_safe
from tvmopt.exporters.source import InputTensor, SourceModel
from tvmopt.runtime.interface import TENSOR, SourceColumn

_OPSET, _EXAMPLE_ROWS = 18, 2
_OUTPUT = "output"


def export_torch(source: SourceModel, folder: Path, dtype: str) -> Exported:
    """Export a model of PyTorch with one input and one output.

    Args:
        source: Its description.
        folder: The saved model.
        dtype: Ignored: the input has the dtype of the signature.

    Raises:
        ConfigError: When its file is not trusted.
        ModelError: When it cannot be read or exported.
        EnvironmentSetupError: Without torch or onnxscript.
    """
    require_packages(("torch", "onnxscript"), "PyTorch", "'tvmopt[pytorch]'")
    import torch

    with contextlib.redirect_stdout(io.StringIO()):  # the exporter prints its steps
        program, module = _loaded(source, folder)
        columns, tensor = _input(source, program)
        graph = _converted(program, module, tensor)
    name = graph.graph.input[0].name
    if columns:
        columns = tuple(SourceColumn(c.name, name, c.position) for c in columns)

    def predict(table: Any) -> np.ndarray:
        array = table.to_numpy(dtype=np.float32) if hasattr(table, "to_numpy") else table
        with torch.no_grad():
            found = module(torch.from_numpy(np.ascontiguousarray(array)))
        if not isinstance(found, torch.Tensor):
            raise ModelError(
                "a PyTorch model must answer with one tensor, as MLflow's flavor demands, but "
                f"answers with a {type(found).__name__}"
            )
        return np.asarray(found.numpy())

    return Exported(graph, columns, TENSOR, _OUTPUT, None, predict)


def source_module(source: SourceModel, folder: Path, device: str) -> Any:
    """Return the module of a saved model.

    Args:
        source: Its description.
        folder: The saved model.
        device: Where its weights, and the tensors that its graph creates, lie: ``"cuda"``.

    Raises:
        ConfigError: When its file is not trusted.
        ModelError: When it cannot be read.
    """
    program, module = _loaded(source, folder)
    if program is not None:
        from torch.export.passes import move_to_device_pass

        module = move_to_device_pass(program, device).module()
    return module.to(device)


def _loaded(source: SourceModel, folder: Path) -> tuple[Any, Any]:
    """Return what torch.export saved, or None for a pickle, and a module that runs it."""
    path = source.path(folder)
    if path.is_dir():
        found = [path / name for name in ("model.pt2", "model.pth") if (path / name).is_file()]
        if not found:
            raise ModelError(
                f"model {source.uri!r} must hold model.pt2 or model.pth, but does not"
                "; log it with mlflow.pytorch.log_model"
            )
        path = found[0]
    if path.suffix == ".pt2":
        return _program(source, path)
    return None, _pickled(source, path, folder)


def _program(source: SourceModel, path: Path) -> tuple[Any, Any]:
    """Return what torch.export saved, and a module that runs it."""
    import torch

    unsafe = why_not_safe(path)
    if unsafe:
        source.require_trust(unsafe)
    try:
        with contextlib.nullcontext() if unsafe else plain_tensors_only():
            program = torch.export.load(path)
    except Exception as error:  # torch raises whatever its parts raise
        raise ModelError(
            f"model {source.uri!r} must be readable by torch.export.load, but: "
            f"{type(error).__name__}: {in_one_line(error)}"
            "; save it with the installed PyTorch"
        ) from error
    return program, program.module()


def _pickled(source: SourceModel, path: Path, folder: Path) -> Any:
    import torch

    source.require_trust("its file is a pickle; log it with serialization_format='pt2'")
    if (folder / "code").is_dir():  # the classes that the pickle names
        sys.path.insert(0, str(folder / "code"))
    try:
        module = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # torch raises whatever its parts raise
        raise ModelError(
            f"model {source.uri!r} must be readable by torch.load, but: "
            f"{type(error).__name__}: {in_one_line(error)}"
            "; save it with the installed PyTorch"
        ) from error
    return module.eval() if hasattr(module, "eval") else module


def _input(
    source: SourceModel, program: Any
) -> tuple[tuple[SourceColumn, ...], InputTensor | None]:
    """Return the columns, and the input tensor of the signature; None for that of the program."""
    if source.columns:
        columns, name, width = matrix_columns(source)
        return columns, InputTensor(name, "float32", (-1, width))
    if not source.tensors and program is not None:
        return (), None
    if len(source.tensors) != 1:
        raise ConfigError(
            f"model {source.uri!r} must have one input, as MLflow's flavor pytorch demands, but "
            f"its signature has {len(source.tensors)}"
        )
    return (), source.tensors[0]


def _converted(program: Any, module: Any, tensor: InputTensor | None) -> onnx.ModelProto:
    import torch

    options: dict[str, Any] = {
        "dynamo": True, "opset_version": _OPSET, "output_names": [_OUTPUT], "verbose": False,
    }  # fmt: skip
    if tensor is not None:
        options["input_names"] = [tensor.name]
    try:
        if program is not None:
            made = torch.onnx.export(program, **options)
        else:
            assert tensor is not None
            shape = [_EXAMPLE_ROWS if extent < 0 else extent for extent in tensor.shape]
            example = torch.zeros(shape, dtype=getattr(torch, tensor.dtype))
            free = {at: torch.export.Dim.DYNAMIC for at, n in enumerate(tensor.shape) if n < 0}
            made = torch.onnx.export(module, (example,), dynamic_shapes=(free,), **options)
    except Exception as error:  # torch raises whatever its parts raise
        raise ModelError(
            "torch.onnx.export must export the model, but says: "
            f"{type(error).__name__}: {in_one_line(error)}"
            "; export the model to ONNX yourself, and give that file as model"
        ) from error
    graph: onnx.ModelProto = made.model_proto
    if len(graph.graph.input) != 1 or len(graph.graph.output) != 1:
        raise ModelError(
            "a PyTorch model must have one input and one output, as MLflow's flavor demands, but "
            f"has {len(graph.graph.input)} and {len(graph.graph.output)}"
        )
    _name_rows(graph)
    return graph


def _name_rows(model: onnx.ModelProto) -> None:
    """Call the first axis ``rows`` where it may have any extent; forget what depends on it."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    if not dims or dims[0].HasField("dim_value"):
        return
    old = dims[0].dim_param
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == old:
                dim.dim_param = ROWS
    del model.graph.value_info[:]
