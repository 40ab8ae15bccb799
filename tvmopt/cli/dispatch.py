"""Start a command by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from tvmopt import command_start
from tvmopt.cli.command_line import FAILED, WRONG_INPUT, run, say_error
from tvmopt.cli.commands import DOCTOR, SUMMARIES, function, unknown
from tvmopt.parameters import COMMANDS
from tvmopt.versions import VERSION, tvm_problem

_USAGE = "usage: tvmopt COMMAND [--PARAMETER VALUE ...]"
_HELP = """\
{usage}

From an ONNX model to the fastest compiled artifact that keeps its accuracy.

commands:
{commands}

tvmopt COMMAND --help lists the parameters of a command; tvmopt --version prints the version.
Runs and models are kept in the MLflow store that MLFLOW_TRACKING_URI names, by default in
mlflow.db and mlruns of the working folder.
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the first word names, and exit with its code.

    Args:
        argv: Words after ``tvmopt``; by default of the command line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        print(_help(), end="")
        sys.exit(0)
    if first == "--version":
        print(f"tvmopt {VERSION}")
        sys.exit(0)
    if first == DOCTOR:
        _doctor(words[1:])
    if first in COMMANDS:
        run_entry(first, words[1:])
    if not words:
        print(_help(), end="", file=sys.stderr)
    else:
        say_error(unknown(first))
    sys.exit(WRONG_INPUT)


def run_entry(entry: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run an entry point with parameters of the command line, and exit with its code.

    The process is started for it: a time budget counts from its start on.
    """
    command_start.mark_process()
    problem = tvm_problem()
    if problem:
        say_error(problem)
        sys.exit(FAILED)
    run(entry, lambda: function(entry), argv)


def _help() -> str:
    width = max(map(len, SUMMARIES))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in SUMMARIES.items()]
    return _HELP.format(usage=_USAGE, commands="\n".join(lines))


def _doctor(words: Sequence[str]) -> NoReturn:
    if words and words[0] in ("-h", "--help"):
        print(f"usage: tvmopt {DOCTOR}\n\n{SUMMARIES[DOCTOR]}")
        sys.exit(0)
    if words:
        say_error(f"doctor must be given no parameters, but got {' '.join(words)!r}; leave it out")
        sys.exit(WRONG_INPUT)
    from tvmopt import doctor

    sys.exit(doctor.main())
