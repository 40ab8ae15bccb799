"""The command ``tvmopt``: one sub-command for each entry point, and ``tvmopt doctor``.

Nothing here imports TVM, MLflow or NumPy before a command's parameters are checked, so that
``--help`` and a wrong parameter answer at once.
"""

from __future__ import annotations

from tvmopt.cli.dispatch import main, run_entry

__all__ = ["main", "run_entry"]
