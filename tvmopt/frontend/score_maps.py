"""Find the outputs of a detector that give values for the positions of a map of scores.

A detector without anchors gives, for each position of an image, scores of classes (a sigmoid) and
values: offsets, sizes, landmarks. Values count where a score is high; at the other positions no
one reads them, and they are noise in the float model, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tvmopt.frontend.last_operator import SIGMOID, last_operator
from tvmopt.frontend.shapes import declared_dims

#: No map of scores.
NONE = -1


def find_score_maps(graph: onnx.GraphProto) -> tuple[int, ...]:
    """Return for each output the index of its map of scores, or :data:`NONE`; empty without maps.

    A map is (batch, classes, height, width) or (batch, positions, classes); its values differ from
    it in the axis of classes alone.

    Args:
        graph: Graph of a prepared model, without functions.
    """
    outputs = [declared_dims(value) for value in graph.output]
    is_map = [
        len(dims or ()) in (3, 4) and last_operator(graph, value.name) in SIGMOID
        for dims, value in zip(outputs, graph.output, strict=True)
    ]
    maps = tuple(
        NONE
        if is_map[at]
        else next((n for n, dims in enumerate(outputs) if is_map[n] and _fits(dims, own)), NONE)
        for at, own in enumerate(outputs)
    )
    return maps if any(one != NONE for one in maps) else ()


def channel_axis(rank: int) -> int:
    """Return the axis of classes, or of values: of an image the second, else the last."""
    return 1 if rank == 4 else rank - 1


def _fits(scores: Sequence[int | str] | None, values: Sequence[int | str] | None) -> bool:
    if scores is None or values is None or len(scores) != len(values):
        return False
    axis = channel_axis(len(scores))
    positions = [list(dims[:axis]) + list(dims[axis + 1 :]) for dims in (scores, values)]
    return positions[0] == positions[1] and all(isinstance(dim, int) for dim in positions[0][1:])
