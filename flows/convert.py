"""Convert an ONNX model to a layout and a dtype, and check it."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import convert

    return convert


if __name__ == "__main__":
    run("convert", _function)
