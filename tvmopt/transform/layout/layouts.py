"""Convolution layouts by name: the supported ones, their requirements, and their forms."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from tvm import relax

from tvmopt.errors import ConfigError
from tvmopt.transform.layout.form import LayoutForm, Shape
from tvmopt.transform.layout.tensors import static_shape

TENSOR_CORE_DEPTH = 16
"""K of one 16-bit tensor-core MMA, in channels."""

_BLOCKED = re.compile(r"NCHW([1-9]\d*)c")
_LETTERS = {"nn.conv1d": "NCW", "nn.conv2d": "NCHW", "nn.conv2d_transpose": "NCHW"}
_WEIGHTS = {
    "nn.conv1d": {"NCW": "OIW", "NWC": "WIO"},
    "nn.conv2d": {"NCHW": "OIHW", "NHWC": "HWIO", "HWNC": "HWOI"},
    "nn.conv2d_transpose": {"NCHW": "IOHW", "NHWC": "HWIO"},
}


@dataclasses.dataclass(frozen=True)
class ConvLayout:
    """Layout of a convolution's data and weight.

    Attributes:
        data: Data layout such as ``"NHWC"``, also that of the output.
        weight: Weight layout such as ``"HWIO"``; for blocked ``data``, the one without groups.
        block: Channel block size, or None.
    """

    data: str
    weight: str
    block: int | None = None


def parse_layouts(desired: Mapping[str, str | Sequence[str]]) -> dict[str, ConvLayout]:
    """Parse and validate desired layouts.

    Args:
        desired: ``"NHWC"`` or ``["NHWC", "default"]`` (data, weight) by operator name, with or
            without ``"relax."``.

    Returns:
        Layouts by operator name without ``"relax."``.

    Raises:
        ConfigError: When an operator or a layout is unknown.
    """
    parsed = {}
    for op, wanted in desired.items():
        name = op.removeprefix("relax.")
        if name not in _LETTERS:
            raise ConfigError(f"desired_layouts must be for {', '.join(_LETTERS)}, but got {op!r}")
        parts = [wanted] if isinstance(wanted, str) else list(wanted)
        if not 1 <= len(parts) <= 2 or not all(isinstance(part, str) for part in parts):
            raise ConfigError(
                f"the layout of {name} must be one name, or two for data and weight, "
                f"but got {wanted!r}"
            )
        parsed[name] = _parse(name, parts[0], parts[1] if len(parts) == 2 else "default")
    return parsed


def _parse(op: str, data: str, weight: str) -> ConvLayout:
    weights = _WEIGHTS[op]
    blocked = _BLOCKED.fullmatch(data) if op == "nn.conv2d" else None
    if blocked is None and data not in weights:
        known = ", ".join(weights) + (", NCHW{c}c (NCHW16c)" if op == "nn.conv2d" else "")
        raise ConfigError(f"the layout of {op} must be one of {known}, but got {data!r}")
    if blocked is not None:
        c = int(blocked.group(1))
        if weight not in ("default", f"OIHW{c}i{c}o"):
            raise ConfigError(
                f"the weight layout for {data} must be 'default' or 'OIHW{c}i{c}o', "
                f"but got {weight!r}"
            )
        return ConvLayout(data, f"OIHW{c}i{c}o", c)
    default = weights[data]
    if weight == "default":
        weight = default
    if sorted(weight) != sorted(default):
        raise ConfigError(
            f"the weight layout of {op} must be 'default' or an order of {default}, "
            f"but got {weight!r}"
        )
    if op != "nn.conv2d" and weight != default:
        raise ConfigError(
            f"the weight layout of {op} in {data} must be 'default' or {default!r}, "
            f"but got {weight!r}"
        )
    return ConvLayout(data, weight)


@dataclasses.dataclass(frozen=True)
class ConvForms:
    """A layout applied to one convolution.

    Attributes:
        data: Form of data and output, over the axes of the original graph.
        weight: Form of the weight.
        data_layout: Data layout in the operator's attributes.
        kernel_layout: Kernel layout in the attributes; ``OIHW1i16o`` for a depthwise convolution.
    """

    data: LayoutForm
    weight: LayoutForm
    data_layout: str
    kernel_layout: str


def conv_forms(call: relax.Call, layout: ConvLayout) -> ConvForms:
    """Return the forms of a convolution for which :func:`cannot` returns None."""
    data, kernel = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    c = layout.block
    if c is None:
        return ConvForms(
            LayoutForm(tuple(data.index(letter) for letter in layout.data)),
            LayoutForm(tuple(kernel.index(letter) for letter in layout.weight)),
            layout.data,
            layout.weight,
        )
    shape = static_shape(call.args[1].ty)
    assert shape is not None
    inner = 1 if shape[kernel.index("I")] == 1 else c
    return ConvForms(
        LayoutForm(tuple(data.index(letter) for letter in "NCHW"), ((data.index("C"), c),)),
        LayoutForm(
            tuple(kernel.index(letter) for letter in "OIHW"),
            ((kernel.index("I"), inner), (kernel.index("O"), c)),
        ),
        layout.data,
        f"OIHW{inner}i{c}o",
    )


def cannot(call: relax.Call, layout: ConvLayout) -> str | None:
    """Return why ``call`` cannot be converted to ``layout``, or None."""
    op = call.op.name.removeprefix("relax.")
    data, out = str(call.attrs.data_layout), str(call.attrs.out_layout)
    if sorted(data) != sorted(_LETTERS[op]):
        return f"its layout {data} is blocked already"
    if out not in ("", data):
        return f"its input is {data} and its output {out}"
    shapes = [static_shape(arg.ty) for arg in call.args[:2]]
    if shapes[0] is None or shapes[1] is None or static_shape(call.ty) is None:
        return "its shapes are not all known"
    if layout.block is not None:
        return _cannot_block(call, layout.block, shapes[0], shapes[1])
    if op == "nn.conv2d_transpose" and layout.data != data:
        return _cannot_transpose(call, shapes[1])
    return None


def _cannot_transpose(call: relax.Call, weight: Shape) -> str | None:
    """Return why the legalization of :mod:`tvmopt.transform.legalize` does not apply, or None."""
    attrs = call.attrs
    if int(attrs.groups) > 1:
        return f"it has {int(attrs.groups)} groups"
    if any(int(d) > 1 for d in attrs.dilation):
        return "it is dilated"
    kernel = [weight[str(attrs.kernel_layout).index(letter)] for letter in "HW"] * 2
    if any(int(p) >= k for p, k in zip(attrs.padding, kernel, strict=True)):
        return "it cuts off more than its kernel adds"
    return None


def _cannot_block(call: relax.Call, c: int, data: Shape, weight: Shape) -> str | None:
    kernel = str(call.attrs.kernel_layout)
    channels = data[str(call.attrs.data_layout).index("C")]
    outputs = weight[kernel.index("O")]
    groups = int(call.attrs.groups)
    if groups == channels == outputs:
        return None if channels % c == 0 else f"{channels} channels are not a multiple of {c}"
    each = " per group" if groups > 1 else ""
    if channels // groups % c:
        return f"{channels // groups} input channels{each} are not a multiple of {c}"
    if outputs // groups % c:
        return f"{outputs // groups} output channels{each} are not a multiple of {c}"
    return None


def should_not(call: relax.Call, layout: ConvLayout) -> str | None:
    """Return why conversion of ``call`` to ``layout`` has no benefit, or None."""
    if layout.data != "HWNC":
        return None
    weight = static_shape(call.args[1].ty)
    groups = int(call.attrs.groups)
    channels = weight[str(call.attrs.kernel_layout).index("I")] if weight else 0
    if groups > 1:
        return (
            f"{groups} groups of {channels} input channels are {groups} small GEMMs, "
            "not one for tensor cores"
        )
    if channels < TENSOR_CORE_DEPTH:
        return (
            f"{channels} input channels are fewer than the {TENSOR_CORE_DEPTH} "
            "that one tensor-core multiply sums over"
        )
    return None
