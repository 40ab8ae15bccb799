"""Signature of a tiled function that ignores the epilogue, for reuse of tuning results."""

from __future__ import annotations

from typing import Any


def tile_signature(form: Any) -> str:
    """Return axes, operands and producers of the anchor of ``form``, as text.

    A convolution with a residual add and one without need nearly the same configuration.
    """
    axes = [(axis.extent, axis.reduce) for axis in form.facts.axes]
    reads = [
        ([int(e) for e in read.buffer.shape], str(read.buffer.dtype), read.strides)
        for read in form.facts.reads
    ]
    return repr((type(form).__name__, axes, reads, len(form.producers)))
