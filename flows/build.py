"""Compile a model to a library and register it as a candidate."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import build

    return build


if __name__ == "__main__":
    run("build", _function)
