"""Fetch or generate the ONNX models of tests and benchmarks.

    python -m benchmarks.zoo --list
    python -m benchmarks.zoo fetch magika resnet18
    python -m benchmarks.zoo fetch --all --dir models

The repository holds no third-party weights. Trained models come from Python packages, pinned by
version and by the SHA-256 of the file in the package. The other models are generated with random
weights. `fetch` writes each model to `<name>.onnx` in `directory()`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx

from benchmarks.torch_state_dict import read_state_dict
from benchmarks.zoo_bert import bert_encoder
from benchmarks.zoo_efficientnet import efficientnet_lite0
from benchmarks.zoo_entries import ENTRIES, Entry
from benchmarks.zoo_packages import installed_file, wheel_member
from benchmarks.zoo_topologies import mlp, mobilenet_v2, resnet

__all__ = ["ENTRIES", "Entry", "directory", "entry", "fetch", "path"]

ENVIRONMENT_VARIABLE = "TVMOPT_ZOO"

_BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": mobilenet_v2,
    "mlp": mlp,
    "bert_layer": bert_encoder,
}


def directory() -> Path:
    """Return the folder of the models: $TVMOPT_ZOO, else `~/.cache/tvmopt/zoo`."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "tvmopt" / "zoo"


def entry(name: str) -> Entry:
    """Return the entry with the name `name`.

    Raises:
        KeyError: No entry has that name.
    """
    for candidate in ENTRIES:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in ENTRIES)
    raise KeyError(f"A zoo model must be one of {known}, but got {name!r}; see --list.")


def path(name: str) -> Path:
    """Return the ONNX file of `name` in `directory()`; fetch it if it is absent."""
    return fetch([name])[0]


def fetch(names: Iterable[str], into: Path | None = None) -> list[Path]:
    """Return the ONNX files of `names`; fetch those that are absent or damaged.

    Args:
        names: Names of entries; a call downloads each package at most once.
        into: Folder for the files, `directory()` by default.

    Raises:
        KeyError: No entry has that name.
        RuntimeError: A package could not be downloaded.
        FileNotFoundError: A package does not hold the file any more.
        ValueError: The file's SHA-256 is not the pinned one.
    """
    into = directory() if into is None else into
    into.mkdir(parents=True, exist_ok=True)
    files = []
    with tempfile.TemporaryDirectory() as downloads:
        for item in [entry(name) for name in names]:
            file = into / f"{item.name}.onnx"
            if not _is_intact(item, file):
                _write(file, _content(item, Path(downloads)))
            files.append(file)
    return files


def _content(item: Entry, downloads: Path) -> bytes:
    """Return the content of an entry's ONNX file, from its builder or its package."""
    if not item.package:
        return _serialize(_BUILDERS[item.name]())
    if item.version:
        content = wheel_member(item.package, item.version, item.member, downloads)
    else:
        content = installed_file(item.package, item.member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != item.sha256:
        raise ValueError(
            f"{item.member} of {item.package} must have SHA-256 {item.sha256}, but got {digest}; "
            "it is not the file this entry was written for: install the pinned version of the "
            "package, or review the new file and pin its digest in zoo_entries.py."
        )
    if item.member.endswith(".pth"):
        return _serialize(efficientnet_lite0(read_state_dict(content)))
    return content


def _is_intact(item: Entry, file: Path) -> bool:
    """Whether `file` exists and has the pinned digest, if there is one."""
    if not file.is_file():
        return False
    if not item.member.endswith(".onnx"):
        return True  # generated: the digest differs between ONNX versions
    return hashlib.sha256(file.read_bytes()).hexdigest() == item.sha256


def _serialize(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def _write(file: Path, content: bytes) -> None:
    """Write to a temporary file and rename it, so that no reader sees a partial file."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(file)


def _print_table() -> None:
    columns = ("name", "source", "input_shapes", "licence", "task")
    rows = [columns]
    for item in ENTRIES:
        source = " ".join(filter(None, (item.package, item.version))) or "generated"
        rows.append((item.name, source, item.input_shapes or "-", item.licence, item.task))
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--list", action="store_true", help="print the table of models")
    commands = parser.add_subparsers(dest="command")
    fetcher = commands.add_parser("fetch", help="write models as ONNX files")
    fetcher.add_argument("names", nargs="*", metavar="NAME")
    fetcher.add_argument("--all", action="store_true", help="all models of --list")
    fetcher.add_argument(
        "--dir", type=Path, help=f"default: ${ENVIRONMENT_VARIABLE}, else the user's cache"
    )
    options = parser.parse_args(arguments)
    if options.list:
        _print_table()
        return 0
    if options.command != "fetch":
        parser.error("pass --list or fetch")
    names = [item.name for item in ENTRIES] if options.all else options.names
    if not names:
        fetcher.error("pass at least one NAME or --all; --list shows the names")
    try:
        for file in fetch(names, options.dir):
            print(f"{file}  {file.stat().st_size} bytes")
    except (KeyError, RuntimeError, FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{error.args[0]}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
