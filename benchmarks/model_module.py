"""Import an ONNX model into Relax in the layout with the lowest predicted latency."""

from __future__ import annotations

from typing import Any

import onnx


def converted_module(model: onnx.ModelProto, target: Any) -> tuple[Any, str]:
    """Import a model, choose its layout with the cost model, and convert it.

    Args:
        model: A model with static shapes, folded by :func:`tvmopt.frontend.prepare`.
        target: A :class:`tvmopt.device.target.TargetSpec`.

    Returns:
        The converted Relax module and its layout.
    """
    from tvmopt.frontend import import_onnx
    from tvmopt.stages.auto_layout import choose_layout
    from tvmopt.transform.conversion import convert_module

    imported = import_onnx(model)

    def converted(layout: str) -> Any:
        return convert_module(imported, layout=layout).mod

    layout = choose_layout(converted, target).name
    return converted(layout), layout
