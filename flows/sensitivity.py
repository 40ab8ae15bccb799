"""Measure accuracy loss and time gain of each layer in each dtype."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.workflow import sensitivity

    return sensitivity


if __name__ == "__main__":
    run("sensitivity", _function)
