"""Measure accuracy and latency of a compiled model against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import evaluate

    return evaluate


if __name__ == "__main__":
    run("evaluate", _function)
