"""Re-check a registered model on held-out data and move an alias to it."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.promote import promote

    return promote


if __name__ == "__main__":
    run("promote", _function)
