"""Command-line options that the CPU benchmarks share, and their validation."""

from __future__ import annotations

import argparse
import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.report import environment, print_environment
from tvmopt.errors import TvmoptError

_SHOWN = 12  # names in an error


def make_parser(
    script: str, doc: str | None, seconds: float, limit: str
) -> argparse.ArgumentParser:
    """Create a parser with the shared options.

    Args:
        script: Name of the module.
        doc: Docstring of the module; the first line is the description.
        seconds: Default of ``--seconds``.
        limit: Help text of ``--seconds``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{script}", description=(doc or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="per contender, default 2")
    parser.add_argument("--topk", type=int, default=20, help="configurations per function")
    parser.add_argument("--model", default="", help="an ONNX file instead of the built-in rows")
    parser.add_argument("--input_shapes", default="", help="input shapes of --model")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"{limit}, default {seconds:g}"
    )
    parser.add_argument("--json", default="", help="file to write the rows to")
    return parser


def table_parser(doc: str | None) -> argparse.ArgumentParser:
    """Create the parser of a benchmark that prints one table: ``--threads``, and what it adds.

    Args:
        doc: Docstring of the module; the first line is the description.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2, help="per contender, default 2")
    return parser


def begin_table(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Parse the options, set the threads of all contenders, and print the environment."""
    given = parser.parse_args(arguments)
    peers.set_threads(given.threads)
    print_environment(environment(given.threads), needed=())
    return given


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse and validate the options, and set the threads of all contenders.

    An invalid option ends the program with a message of one line.
    """
    args = parser.parse_args(arguments)
    for name in ("threads", "topk"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, but got {getattr(args, name)}")
    if args.model and not Path(args.model).is_file():
        parser.error(f"--model must be an ONNX file, but there is none at {args.model!r}")
    peers.set_threads(args.threads)
    return args


@contextlib.contextmanager
def errors_in_one_line(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn an error into a message of one line that ends the program."""
    try:
        yield
    except (TvmoptError, RuntimeError, OSError, ValueError) as error:
        parser.error(str(error))


def check_names(
    parser: argparse.ArgumentParser, only: str, known: Iterable[str]
) -> list[str] | None:
    """Split ``--only`` into names, None if empty; an unknown name ends the program."""
    if not only:
        return None
    known = list(known)
    wanted = list(filter(None, (name.strip() for name in only.split(","))))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        close = [m for name in unknown for m in difflib.get_close_matches(name, known)] or known
        more = f" and {len(known) - _SHOWN} more" if len(close) > _SHOWN else ""
        parser.error(
            f"--only must name rows, but got {', '.join(map(repr, unknown or [only]))}; "
            f"choose from {', '.join(close[:_SHOWN])}{more}"
        )
    return wanted
