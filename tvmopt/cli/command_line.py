"""From a command line to a call: parse, check, run, and end with one clear line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from tvmopt import command_cache
from tvmopt.cli.signals import end_on_signals, end_with_mlflow_run, raise_again, settle
from tvmopt.cli.unexpected import DEBUG, explain, hide_tracebacks, print_traceback
from tvmopt.errors import ConfigError, EnvironmentSetupError, ModelError, TvmoptError
from tvmopt.parameters import COMMANDS, Parameter
from tvmopt.parameters.command import Command
from tvmopt.printable import one_line
from tvmopt.scratch import own_temporary_folder

WRONG_INPUT = 2
FAILED = 1
_LONGEST = 1500


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        say_error(f"{message} (see --help)")
        sys.exit(WRONG_INPUT)


def parse(entry: str, argv: Sequence[str] | None) -> Command:
    """Return the parameters of ``entry`` from the command line.

    An empty value, or the default's own, means the default: so ``mlflow run``, which passes every
    default, does not override the file ``config``.

    Raises:
        ConfigError: When a value is not of its type, or a needed one is missing.
    """
    command = COMMANDS[entry]
    parser = _Parser(prog=f"tvmopt {entry}", description=command.summary(), allow_abbrev=False)
    for one in command.parameters():
        parser.add_argument(
            f"--{one.name}",
            default="",
            metavar="TEXT" if one.kind not in (int, float, bool) else one.kind.__name__.upper(),
            help=f"{one.help}{_shown(one)}".replace("%", "%%"),
        )
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    given = vars(parser.parse_args(argv))
    if given.pop("debug"):
        os.environ[DEBUG] = "1"
    values = {
        one.name: one.parse(given[one.name])
        for one in command.parameters()
        if given[one.name].strip()
    }
    defaults = {one.name: one.default for one in command.parameters()}
    return command.of({name: value for name, value in values.items() if value != defaults[name]})


def _shown(one: Parameter) -> str:
    if one.default is None:
        return " (needed)"
    if not str(one.default):  # the help says what happens then
        return ""
    value = one.default
    return f" (default: {str(value).lower() if one.kind is bool else value})"


def run(
    entry: str, find: Callable[[], Callable[..., object]], argv: Sequence[str] | None = None
) -> NoReturn:
    """Run an entry point and exit: 0 done, 1 failed, 2 wrong input, 130 interrupted, 143 ended.

    Whatever fails is one line on standard error. ``--debug``, or ``TVMOPT_DEBUG=1``, adds the
    traceback.

    Args:
        entry: Name of the entry point.
        find: Gives its function; called after parsing, so that ``--help`` and a wrong parameter
            answer at once, without importing the compiler.
        argv: Words of the parameters; by default of the command line.
    """
    end_on_signals()
    try:
        _run(entry, find, argv)
    finally:
        settle()


def _run(
    entry: str, find: Callable[[], Callable[..., object]], argv: Sequence[str] | None
) -> NoReturn:
    end_with_mlflow_run()
    hide_tracebacks()
    try:
        command = parse(entry, argv)
        with own_temporary_folder() as folder, command_cache.shared_in(folder):
            _call(find, command)
    except (ConfigError, ModelError) as error:
        print_traceback(error)
        say_error(error)
        sys.exit(WRONG_INPUT)
    except (TvmoptError, EnvironmentSetupError) as error:
        print_traceback(error)
        say_error(error)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # the command's boundary: one line, and the exit code
        print_traceback(error)
        say_error(explain(error))
        sys.exit(FAILED)
    sys.exit(0)


def _call(find: Callable[[], Callable[..., object]], command: Command) -> None:
    try:
        find()(**command.values())
    except Exception:  # raised again: a signal comes first
        raise_again()
        raise


def say_error(error: Exception | str) -> None:
    """Print one line on standard error, without secrets and cut where it is too long."""
    from tvmopt.search.urls import without_known_secrets

    text = one_line(without_known_secrets(" ".join(str(error).split())))
    more = "..." if len(text) > _LONGEST else ""
    print(f"error: {text[:_LONGEST]}{more}", file=sys.stderr)
