"""Join the study of a search, and run trials of it."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.search import worker

    return worker


if __name__ == "__main__":
    run("worker", _function)
