"""Find the fastest artifact of a model that keeps to the limits; goes on where it was left."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.search import search

    return search


if __name__ == "__main__":
    run("search", _function)
