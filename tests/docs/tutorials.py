"""Run the tutorials: every command block of a page, in order, in a copy of the project.

``python -m tests.docs.tutorials --write [NAME ...]`` runs them and puts what they print into the
pages.

A block is a fence of ``sh`` or ``python``. A fence of ``text`` that follows it is its output. Lines
that begin with ``%``, which the site does not show, say how to run a block::

    % skip: REASON        not run
    % needs: nvcc         run where this is (or gpu)
    % after: port 5001    waits until something listens there
    % until: WORD         repeated until the output holds the word
    % background          ends with the tutorial
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import difflib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
NAMES = ("first-model", "int8", "search", "deploy", "gpu", "board")
#: What the printed output shows in place of the temporary folder.
SHOWN_FOLDER = "/home/you/tvmopt"
#: Longer lines of output end with dots.
SHOWN_WIDTH = 104
_PROJECT = ("MLproject", "conda.yaml", "pyproject.toml", "flows", "tvmopt")
_FENCE = re.compile(r"^```(.*)$")
_OPTION = re.compile(r"^% (skip|needs|after|until|background)(?:: (.+))?$")
_MACHINE = re.compile(r"(?<=<!-- printed -->\n).*?(?=\n<!-- end of printed -->)", re.DOTALL)
_WAIT_S, _BLOCK_S, _END_S = 90.0, 1800.0, 20.0


@dataclasses.dataclass
class Block:
    """A command block of a page.

    Attributes:
        kind: ``"sh"`` or ``"python"``.
        line: Line number of its fence, from 1.
        text: The commands.
        options: Options from ``%`` lines, by name.
        output: Printed output in the page; None where the page shows none.
        span: First and last line (exclusive) of the output, counted from 0.
    """

    kind: str
    line: int
    text: str
    options: dict[str, str]
    output: str | None = None
    span: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True)
class Ran:
    """What became of a block.

    Attributes:
        block: The block.
        printed: Its standard output, without this machine's folders; None when it was not run.
        why_not: Why it was not run.
    """

    block: Block
    printed: str | None
    why_not: str = ""


def read_blocks(text: str) -> list[Block]:
    """Return the command blocks of a page.

    Raises:
        ValueError: When a fence is not closed.
    """
    blocks: list[Block] = []
    options: dict[str, str] = {}
    lines = text.splitlines()
    number, follows = 0, False
    while number < len(lines):
        line = lines[number]
        if option := _OPTION.match(line):
            options[option[1]] = option[2] or ""
        elif fence := _FENCE.match(line):
            end = next((i for i in range(number + 1, len(lines)) if lines[i] == "```"), None)
            if end is None:
                raise ValueError(f"the fence of line {number + 1} must be closed, but it is not")
            body = "\n".join(lines[number + 1 : end])
            if fence[1] in ("sh", "python"):
                blocks.append(Block(fence[1], number + 1, body, options))
                follows = True
            elif fence[1] == "text" and follows:
                blocks[-1].output, blocks[-1].span = body, (number + 1, end)
                follows = False
            options, number = {}, end
        elif line.strip():
            options, follows = {}, False
        number += 1
    return blocks


class Tutorial:
    """A tutorial in its own folder, with its own store and its background processes.

    Args:
        name: Name of the page.
        folder: An empty folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.page = FOLDER / f"{name}.md"
        self.blocks = read_blocks(self.page.read_text())
        self._project = folder / "tvmopt"
        self._temporary = folder / "tmp"
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self) -> Iterator[Ran]:
        """Run the blocks one by one.

        Raises:
            RuntimeError: When one fails, with what it said.
        """
        self._copy_project()
        try:
            for block in self.blocks:
                why_not = _why_not(block)
                yield Ran(block, None if why_not else self._one(block), why_not)
        finally:
            self._end_background()

    def _copy_project(self) -> None:
        self._temporary.mkdir()
        self._project.mkdir()
        for name in _PROJECT:
            source, target = ROOT / name, self._project / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copyfile(source, target)

    def _one(self, block: Block) -> str:
        if "after" in block.options:
            _wait_for_port(int(block.options["after"].removeprefix("port ")))
        if "background" in block.options:
            self._background.append(
                subprocess.Popen(
                    _command(block),
                    cwd=self._project,
                    env=self._env(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            return ""
        wanted = block.options.get("until", "")
        end = time.monotonic() + _WAIT_S
        while True:
            printed = self._printed(block)
            if wanted in printed or time.monotonic() > end:
                return printed
            time.sleep(1)

    def _printed(self, block: Block) -> str:
        done = subprocess.run(
            _command(block),
            cwd=self._project,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BLOCK_S,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{self.page.name}, line {block.line}: exit code {done.returncode}\n"
                f"{done.stdout}\n{done.stderr[-4000:]}"
            )
        text = done.stdout.replace(str(self._project), SHOWN_FOLDER)
        return "\n".join(shortened(line.rstrip()) for line in text.strip("\n").splitlines())

    def _env(self) -> dict[str, str]:
        dropped = ("MLFLOW_", "TVM_", "TVMOPT_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        kept["MLFLOW_DISABLE_TELEMETRY"] = "true"
        kept["TMPDIR"] = str(self._temporary)
        return kept

    def _end_background(self) -> None:
        for process in reversed(self._background):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._background:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def taken_ports(blocks: Sequence[Block]) -> list[int]:
    """Return the ports of a tutorial at which something else listens already."""
    named = {b.options["after"].removeprefix("port ") for b in blocks if "after" in b.options}
    return [int(port) for port in sorted(named) if _listens(int(port))]


def shortened(line: str) -> str:
    """Return a line of output, cut between two words when it is longer than a page is wide."""
    if len(line) <= SHOWN_WIDTH:
        return line
    return line[: line.rfind(" ", 0, SHOWN_WIDTH - 3)] + " ..."


def likeness(shown: str, printed: str) -> float:
    """Return how alike two outputs are in their words, from 0 to 1; numbers do not count."""
    a, b = (re.findall(r"[A-Za-z_]{3,}", text) for text in (shown, printed))
    return difflib.SequenceMatcher(a=a, b=b, autojunk=False).ratio()


def with_outputs(text: str, ran: Sequence[Ran]) -> str:
    """Return a page with the outputs of its blocks replaced by what they printed."""
    lines = text.splitlines()
    for one in reversed(ran):
        if one.block.output is not None and one.printed is not None:
            first, last = one.block.span
            lines[first:last] = one.printed.splitlines()
    return "\n".join(lines) + "\n"


def _command(block: Block) -> list[str]:
    if block.kind == "sh":
        return ["bash", "-euo", "pipefail", "-c", block.text]
    return [sys.executable, "-c", block.text]


def _why_not(block: Block) -> str:
    if "skip" in block.options:
        return block.options["skip"]
    if block.options.get("needs") == "nvcc" and shutil.which("nvcc") is None:
        return "nvcc is not installed"
    if block.options.get("needs") == "gpu" and shutil.which("nvidia-smi") is None:
        return "there is no NVIDIA GPU"
    return ""


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait_for_port(port: int) -> None:
    end = time.monotonic() + _WAIT_S
    while not _listens(port):
        if time.monotonic() > end:
            raise RuntimeError(f"port {port} must answer within {_WAIT_S:.0f} s, but it does not")
        time.sleep(0.5)


def main() -> None:
    """Run tutorials, and with ``--write`` put their outputs into the pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--write", action="store_true", help="write the outputs into the pages")
    given = parser.parse_args()
    for name in given.names:
        with tempfile.TemporaryDirectory(prefix="tvmopt-tutorial-") as folder:
            tutorial = Tutorial(name, Path(folder))
            ran = []
            for one in tutorial.run():
                print(f"--- {name}, line {one.block.line} {one.why_not}\n{one.printed or ''}")
                ran.append(one)
        if given.write:
            tutorial.page.write_text(with_outputs(tutorial.page.read_text(), ran))
    if given.write:
        _write_machine()


def _write_machine() -> None:
    from tvmopt import host

    cores = host.usable_cores()
    busy = ", busy with other work as well" if os.getloadavg()[1] > 2 * cores else ""
    today = datetime.date.today().isoformat()
    said = f"Printed on {today} on {cores} cores of {host.cpu_model()}{busy}."
    index = FOLDER / "index.md"
    index.write_text(_MACHINE.sub(said, index.read_text()))


if __name__ == "__main__":
    main()
