"""Find schedules for a model."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import tune

    return tune


if __name__ == "__main__":
    run("tune", _function)
