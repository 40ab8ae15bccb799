"""Layouts and shapes of Relax calls of ``conv2d``."""

from __future__ import annotations

from tvm import ir, relax

from tvmopt.transform.integer.values import static_shape

#: Layouts of data, weight and result, with the channels last.
NHWC = ("NHWC", "HWIO", "NHWC")


def layouts_of(call: relax.Call) -> tuple[str, str, str]:
    """Return the layouts of data, weight and result of a convolution."""
    attrs = call.attrs
    return str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)


def nhwc_shapes(call: relax.Call) -> list[tuple[int, ...]] | None:
    """Return the static shapes of data, weight and result of a ``conv2d`` in ``NHWC``.

    Returns:
        None for other calls, grouped convolutions, and shapes that are not static.
    """
    if not isinstance(call.op, ir.Op) or call.op.name != "relax.nn.conv2d":
        return None
    if layouts_of(call) != NHWC or int(call.attrs.groups) != 1:
        return None
    shapes = [static_shape(value) for value in (*call.args, call)]
    return None if None in shapes else [shape for shape in shapes if shape is not None]
