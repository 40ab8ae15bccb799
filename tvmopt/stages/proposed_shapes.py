"""Sizes that ``input_shapes`` asks for with ``auto``, from the samples in the user's file."""

from __future__ import annotations

from pathlib import Path

from tvmopt.evaluate.dataset import read_arrays
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.proposed_sizes import proposes, with_proposed_sizes
from tvmopt.frontend.shapes import graph_inputs


def proposed_shapes(text: str, model: Path, data: Path | None) -> str:
    """Return ``input_shapes`` with a set for each ``dimension=auto``; any other text as it is.

    Args:
        text: The text.
        model: The ONNX file.
        data: File with samples, or None.

    Raises:
        ConfigError: When there is no data, it is unreadable, or it does not tell the sizes.
    """
    if not proposes(text):
        return text
    loaded = load_onnx(model)
    names = [value.name for value in graph_inputs(loaded)]
    arrays = None if data is None else read_arrays(data, names)[0]
    return with_proposed_sizes(text, loaded, arrays)
