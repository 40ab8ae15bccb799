"""Text that is equal for functions whose tiles differ in the epilogue alone."""

from __future__ import annotations

from typing import Any


def tile_signature(form: Any) -> str:
    """Return axes, operands and producers of the anchor of ``form``.

    A convolution with a residual and one without want nearly the same configuration.
    """
    axes = [(axis.extent, axis.reduce) for axis in form.facts.axes]
    reads = [
        ([int(e) for e in read.buffer.shape], str(read.buffer.dtype), read.strides)
        for read in form.facts.reads
    ]
    return repr((type(form).__name__, axes, reads, len(form.producers)))
