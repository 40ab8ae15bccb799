"""Layout conversion: convolutions to another layout, and the operators between them too.

before -> after, for ``{"nn.conv2d": "NHWC"}``::

    lv = conv2d(x, w)                    y = permute_dims(x, [0, 2, 3, 1])
    lv1 = relu(add(lv, b))               lv = conv2d(y, w', data_layout="NHWC")
    gv = mean(lv1, [2, 3])               lv1 = relu(add(lv, b'))
                                         gv = mean(lv1, [1, 2])

with ``w'`` and ``b'`` folded. One traversal of the bindings tracks, for every tensor, the layouts
in which it exists. Convolutions request theirs. Operators that support several layouts take the one
that moves the fewest bytes. All other operators get the original layout back.

Source: the ``ConvertLayout`` passes of TVM, which stop at reshape, pad, clip and quantize, and the
layout utilities of apache/tvm pull request 6748.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from tvmopt.errors import ConfigError
from tvmopt.skip_layers import SkipLayers, SkipLayersLike
from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.layout.config import LayoutConfig
from tvmopt.transform.layout.layouts import (
    ConvForms,
    ConvLayout,
    cannot,
    conv_forms,
    parse_layouts,
    should_not,
)
from tvmopt.transform.layout.report import LayoutResult
from tvmopt.transform.layout.walk import Walk
from tvmopt.transform.raise_tensor_ir import raise_tensor_ir

DesiredLayouts = Mapping[str, str | Sequence[str]]


def convert_layout(mod: tvm.IRModule, desired_layouts: DesiredLayouts) -> tvm.IRModule:
    """Convert convolutions to another layout; :class:`LayoutConfig` sets which ones to skip.

    Args:
        mod: A simplified module.
        desired_layouts: ``{"nn.conv2d": "NHWC"}``, or a list of data and weight layout:
            ``{"nn.conv2d": ["HWNC", "default"]}``. ``nn.conv2d`` supports ``"NCHW"``, ``"NHWC"``,
            ``"HWNC"`` and ``"NCHW{c}c"`` (``"NCHW16c"``). ``nn.conv2d_transpose`` supports
            ``"NHWC"``, and ``nn.conv1d`` supports ``"NWC"``.

    Returns:
        The module; its inputs and outputs are unchanged.

    Raises:
        ConfigError: As :func:`convert_layout_with_report`.
    """
    return convert_layout_with_report(mod, desired_layouts).mod


def convert_layout_with_report(
    mod: tvm.IRModule,
    desired_layouts: DesiredLayouts,
    skip_layers: SkipLayersLike = None,
    auto_skip: bool | None = None,
) -> LayoutResult:
    """Run :func:`convert_layout` and report skipped layers and inserted conversions.

    Args:
        mod: A simplified module.
        desired_layouts: As for :func:`convert_layout`.
        skip_layers: Layers that keep their layout; None takes the scope's setting.
        auto_skip: Whether to skip layers without benefit or support; None takes the scope's
            setting, which is True by default.

    Raises:
        ConfigError: When an operator or a layout is unknown, when ``skip_layers`` matches nothing,
            or when a layer cannot be converted and ``auto_skip`` is off.
    """
    config = LayoutConfig.current()
    layouts = parse_layouts(desired_layouts)
    mod = raise_tensor_ir(mod)  # TensorIR functions have no layout rules
    found = anchors(mod)
    asked = config.skip_layers if skip_layers is None else skip_layers
    skipped = SkipLayers.parse(asked).resolve(found)
    auto = config.auto_skip if auto_skip is None else auto_skip
    planned = _plan(mod, found, layouts, skipped, auto)
    skipped = dict(sorted(skipped.items()))
    if not planned:
        return LayoutResult(mod, skipped, ())
    walk = Walk(mod, planned)
    main = walk.run().with_attrs(dict(mod["main"].attrs.items()) if mod["main"].attrs else {})
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    out["main"] = main
    clean = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    return LayoutResult(tvm.transform.Sequential(clean)(out), skipped, tuple(walk.forms.changes))


def _plan(
    mod: tvm.IRModule,
    found: list[Anchor],
    layouts: dict[str, ConvLayout],
    skipped: dict[int, str],
    auto_skip: bool,
) -> dict[relax.Var, ConvForms]:
    """Return the forms of the convolutions to convert; add the others to ``skipped``."""
    outer = {b.var for block in mod["main"].body.blocks for b in block.bindings}
    planned: dict[relax.Var, ConvForms] = {}
    for anchor in found:
        layout = layouts.get(anchor.op)
        if layout is None or anchor.index in skipped:
            continue
        why = "it is in a branch of an If" if anchor.var not in outer else None
        why = why or cannot(anchor.call, layout)
        if why is not None and not auto_skip:
            raise ConfigError(
                f"with auto_skip off every layer must be convertible to {layout.data}, but of "
                f"layer {anchor.index} ({anchor.name}) {why}; name it in skip_layers"
            )
        if auto_skip:
            why = why or should_not(anchor.call, layout)
        if why is not None:
            skipped[anchor.index] = why
            continue
        planned[anchor.var] = conv_forms(anchor.call, layout)
    return planned
