"""ONNX frontend: load, prepare and import models to Relax, and report unsupported operators."""

from tvmopt.frontend.given_shapes import format_input_shapes, parse_input_shapes, shapes_for
from tvmopt.frontend.importer import Imported, import_onnx, import_with_segments, not_compilable
from tvmopt.frontend.layers import Layer, layer_table
from tvmopt.frontend.load import load_onnx, model_digest
from tvmopt.frontend.prepare import Prepared, prepare

__all__ = [
    "Imported",
    "Layer",
    "Prepared",
    "format_input_shapes",
    "import_onnx",
    "import_with_segments",
    "layer_table",
    "load_onnx",
    "model_digest",
    "not_compilable",
    "parse_input_shapes",
    "prepare",
    "shapes_for",
]
