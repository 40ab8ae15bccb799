"""Bring a registered model to a folder that runs without MLflow."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.pull import pull

    return pull


if __name__ == "__main__":
    run("pull", _function)
