"""Serve a registered model over HTTP, with MLflow's protocol, until the command is ended."""

from __future__ import annotations

from collections.abc import Callable

from flows.command_line import run


def _function() -> Callable[..., object]:
    from tvmopt.tracking.serve import serve

    return serve


if __name__ == "__main__":
    run("serve", _function)
