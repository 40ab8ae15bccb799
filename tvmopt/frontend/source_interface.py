"""Read the interface of a source model from the metadata of its ONNX file."""

from __future__ import annotations

import json

import onnx

from tvmopt.errors import ModelError, in_one_line
from tvmopt.runtime.interface import INTERFACE_KEY, SourceInterface


def interface_of(model: onnx.ModelProto) -> SourceInterface | None:
    """Return the interface that an ONNX model carries; None without one.

    Raises:
        ModelError: When it is damaged.
    """
    texts = [entry.value for entry in model.metadata_props if entry.key == INTERFACE_KEY]
    if not texts:
        return None
    try:
        return SourceInterface.from_dict(json.loads(texts[0]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            "the interface in the metadata of the model must be one that tvmopt wrote, but: "
            f"{type(error).__name__}: {in_one_line(error)}; export the model again"
        ) from error
