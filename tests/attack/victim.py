"""The small network that the attacks convert and register, and what counts as unclear."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.helper import make_node

from ..fuzz.seed import floats, make_model, value
from .checkout import Checkout


def network(name: str = "x") -> onnx.ModelProto:
    """Return convolution, Relu and mean over the input ``name`` (1, 3, 8, 8)."""
    nodes = [
        make_node("Conv", [name, "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        make_node("Relu", ["c"], ["r"], name="relu"),
        make_node("GlobalAveragePool", ["r"], ["y"], name="mean"),
    ]
    inputs, outputs = [value(name, [1, 3, 8, 8])], [value("y", [1, 4, 1, 1])]
    return make_model(nodes, inputs, outputs, {"w": floats(4, 3, 3, 3)})


def registered(checkout: Checkout, name: str = "net", **more: Any) -> tuple[int | None, str]:
    """Register the network; return what ``Checkout.run`` does."""
    path = checkout.save(network(), name)
    return checkout.run("main", model=path, name=name, strategy="default", threads=1, **more)


def is_unclear(code: int | None, said: str) -> str:
    """Say why an end is none of a command that refuses in one line; empty if it may be."""
    if code is None:
        return "hangs"
    if code < 0:
        return f"dies of signal {-code}"
    if "Traceback" in said:
        return "a traceback"
    return "an unexpected error" if "unexpected error" in said else ""
