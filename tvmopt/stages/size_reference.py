"""Float reference of a further size: its ONNX model, without the weights that the largest has."""

from __future__ import annotations

import json
from pathlib import Path

import onnx

from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.size_folders import size_folder

# Property of the model: names of the weights that are read from the largest size's reference.
_SHARED = "tvmopt.shared_weights"


def drop_shared_weights(folder: Path, largest: Path) -> None:
    """Remove the weights of a size's reference that equal the largest's.

    Args:
        folder: Folder of the size in the output of the convert stage.
        largest: Folder of the largest size.
    """
    model, weights = onnx.load(folder / REFERENCE_FILE), _weights(largest)
    own = list(model.graph.initializer)
    shared = [weight.name for weight in own if weights.get(weight.name) == weight]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weight for weight in own if weight.name not in set(shared))
    model.metadata_props.add(key=_SHARED, value=json.dumps(shared))
    onnx.save_model(model, str(folder / REFERENCE_FILE))


def read_reference(convert_dir: Path, size: int) -> onnx.ModelProto:
    """Return the reference of a size (0: the largest), with all its weights."""
    model = onnx.load(size_folder(convert_dir, size) / REFERENCE_FILE)
    shared = [prop.value for prop in model.metadata_props if prop.key == _SHARED]
    if size and shared:
        weights = _weights(convert_dir)
        model.graph.initializer.extend(weights[name] for name in json.loads(shared[0]))
    return model


def _weights(folder: Path) -> dict[str, onnx.TensorProto]:
    model = onnx.load(folder / REFERENCE_FILE)
    return {weight.name: weight for weight in model.graph.initializer}
