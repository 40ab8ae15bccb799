"""Repeat the attacks of the security review on any checkout of this project.

``python -m tests.attack --project DIR --python DIR/.venv/bin/python`` prints a line for each
attack, and returns the number of those that succeeded. It uses command lines only, so that it
runs on every commit. SECURITY.md says what is held against each of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import calls, files, processes, store
from .checkout import Checkout

ATTACKS: tuple[Callable[[Checkout], str], ...] = (
    files.code_in_a_name, files.escapes_in_a_name, files.endless_loop, files.fifo_as_model,
    files.huge_dimension, files.loop_of_links, files.damaged_data, files.absurd_threads,
    files.nested_yaml, files.alias_bomb, store.exchanged_tolerance, store.exchanged_code,
    store.foreign_library, store.password_in_a_run, processes.ended_by_a_signal,
    processes.ended_mlflow_run, processes.folders_of_the_killed, processes.two_first_commands,
    calls.nan_becomes_a_number, calls.index_out_of_range, calls.division_by_zero,
    calls.size_that_overflows,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each attack; return how many succeeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--project", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("names", nargs="*", help="attacks to try; all without")
    given = parser.parse_args(arguments)
    succeeded = 0
    for attack in ATTACKS:
        if given.names and attack.__name__ not in given.names:
            continue
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
            evidence = attack(Checkout(given.project.resolve(), given.python, Path(folder)))
        succeeded += bool(evidence)
        print(
            f"{attack.__name__:22} {'SUCCEEDED: ' + evidence if evidence else 'held'}", flush=True
        )
    return succeeded


if __name__ == "__main__":
    sys.exit(main())
