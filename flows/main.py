"""Take an ONNX model to a registered, compiled model; the bundled example by default."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import main

    return main


if __name__ == "__main__":
    run("main", _function)
