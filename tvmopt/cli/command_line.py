"""From a command line to a call: parse, check, run, and end with one clear line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tvmopt.cli.commands import COMMANDS
from tvmopt.cli.signals import end_on_signals, end_with_mlflow_run, raise_again, settle
from tvmopt.cli.unexpected import DEBUG, explain, hide_tracebacks, print_traceback
from tvmopt.errors import ConfigError, EnvironmentSetupError, ModelError, TvmoptError
from tvmopt.parameters import ENTRY_POINTS, Parameter
from tvmopt.printable import one_line
from tvmopt.scratch import own_temporary_folder

WRONG_INPUT = 2
FAILED = 1
_LONGEST = 1500


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        say_error(f"{message} (see --help)")
        sys.exit(WRONG_INPUT)


def parse(entry: str, argv: Sequence[str] | None, description: str | None) -> dict[str, Any]:
    """Parameters of ``entry`` from the command line; an empty value means the default.

    Raises:
        ConfigError: When a value is not of its type or a needed one is missing.
    """
    parser = _Parser(prog=f"tvmopt {entry}", description=description, allow_abbrev=False)
    for parameter in ENTRY_POINTS[entry]:
        shown = _shown(parameter)
        parser.add_argument(
            f"--{parameter.name}",
            default="",
            metavar=parameter.kind.__name__.upper(),
            help=f"{parameter.help}{shown}".replace("%", "%%"),
        )
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    given = vars(parser.parse_args(argv))
    if given.pop("debug"):
        os.environ[DEBUG] = "1"
    values = {}
    for parameter in ENTRY_POINTS[entry]:
        text = given[parameter.name]
        if text.strip():
            values[parameter.name] = parameter.parse(text)
        elif parameter.default is None:
            raise ConfigError(f"{parameter.name} must be given: {parameter.help}")
        else:
            values[parameter.name] = parameter.default
    return values


def _shown(parameter: Parameter) -> str:
    if parameter.default is None:
        return " (needed)"
    if parameter.default == "":  # the help says what happens then
        return ""
    value = parameter.default
    return f" (default: {str(value).lower() if parameter.kind is bool else value})"


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
        values = parse(entry, argv, COMMANDS[entry])
        with own_temporary_folder():
            _call(find, values)
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
    except Exception as error:
        print_traceback(error)
        say_error(explain(error))
        sys.exit(FAILED)
    sys.exit(0)


def _call(find: Callable[[], Callable[..., object]], values: dict[str, Any]) -> None:
    try:
        find()(**values)
    except Exception:
        raise_again()
        raise


def say_error(error: Exception | str) -> None:
    """Print one line on standard error, without secrets and cut where it is too long."""
    from tvmopt.search.urls import without_known_secrets

    text = one_line(without_known_secrets(" ".join(str(error).split())))
    more = "..." if len(text) > _LONGEST else ""
    print(f"error: {text[:_LONGEST]}{more}", file=sys.stderr)
