"""List the layers of an ONNX model in a child process: ONNX Runtime's optimiser runs there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tvmopt.frontend.given_shapes import shapes_for
from tvmopt.frontend.layers import Layer, layer_table
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.stages.result import StageResult

_FILE = "layers.json"


def write_layers(input_shapes: str, model: Path, out_dir: Path) -> StageResult:
    """Prepare a model and write its layer table.

    Args:
        input_shapes: As in :class:`tvmopt.config.ConvertConfig`.
        model: ONNX file.
        out_dir: Gets the table; :func:`read_layers` reads it.

    Raises:
        ConfigError, ModelError: As :func:`tvmopt.frontend.prepare.prepare`.
    """
    loaded = load_onnx(model)
    prepared = prepare(loaded, shapes_for(loaded, input_shapes))
    layers = [dataclasses.asdict(layer) for layer in layer_table(prepared.model)]
    (out_dir / _FILE).write_text(json.dumps(layers))
    return StageResult({"layers": float(len(layers))}, {}, [])


def read_layers(out_dir: Path) -> list[Layer]:
    """Read what :func:`write_layers` wrote."""
    return [Layer(**layer) for layer in json.loads((out_dir / _FILE).read_text())]
