"""The command line that starts an entry point, as the user of this installation types it."""

from __future__ import annotations

import shlex
from pathlib import Path

import tvmopt


def next_command(entry: str, **params: str) -> str:
    """Return the command that runs ``entry`` with ``params``; empty ones are left out.

    In the folder of the project, as in a step of ``mlflow run``, this is ``mlflow run``; elsewhere
    it is the command ``tvmopt``, because a wheel holds no ``MLproject``.
    """
    given = {name: value for name, value in params.items() if value}
    root = Path(tvmopt.__file__).parents[1]
    if Path.cwd() == root and (root / "MLproject").is_file():
        words = ["mlflow", "run", ".", "-e", entry, "--env-manager", "local"]
        for name, value in given.items():
            words += ["-P", f"{name}={value}"]
    else:
        words = ["tvmopt", entry]
        for name, value in given.items():
            words += [f"--{name}", value]
    return shlex.join(words)
