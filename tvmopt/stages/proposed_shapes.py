"""Sizes that ``input_shapes`` asks for with ``auto``, from the samples in the user's file."""

from __future__ import annotations

from pathlib import Path

import onnx

from tvmopt.evaluate.dataset import read_arrays
from tvmopt.frontend.proposed_sizes import with_proposed_sizes
from tvmopt.frontend.shapes import graph_inputs


def proposed_shapes(text: str, model: onnx.ModelProto, data: Path | None) -> str:
    """Return ``input_shapes`` with a set for each ``dimension=auto``.

    Args:
        text: The text, which asks for one.
        model: The model as its file has it.
        data: File with samples, or None.

    Raises:
        ConfigError: When there is no data, it is unreadable, or it does not tell the sizes.
    """
    names = [value.name for value in graph_inputs(model)]
    arrays = None if data is None else read_arrays(data, names)[0]
    return with_proposed_sizes(text, model, arrays)
