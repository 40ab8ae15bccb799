"""nvcc without what it repeats for every kernel: half a second becomes a tenth.

For each source nvcc starts a preprocessor that reads the host's and CUDA's headers, some megabytes
of them, and its compiler proper (``cicc``) then parses them. A generated kernel uses a small part:
the declarations of device functions. Here these are preprocessed once (:mod:`.prelude`), and the
commands that ``nvcc --dryrun`` shows are run on the kernel's own text. Wherever this does not go,
nvcc itself is to be asked: :class:`LeanError` says so.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import string
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvmopt.kernels.cuda.toolchain.prelude import (
    HEADERS,
    OWN_HEADERS,
    prelude_source,
    write_stand_ins,
)

# A prelude and its stand-ins lie in one folder, beside what is being compiled.
_NAME = "kernel"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"][ \t]*$', re.MULTILINE)
# Headers that TVM includes for what hardly a kernel uses, and what one that does would mention; a
# thread's rank in its block is in the prelude.
_UNUSED = {
    "cuda/barrier": re.compile(r"\bcuda::"),
    "cooperative_groups.h": re.compile(
        r"\b(cooperative_groups::|cg::(?!this_thread_block\(\)\.thread_rank\(\)))"
    ),
}
_TIMEOUT_S = 300.0


class LeanError(RuntimeError):
    """nvcc's parts could not be run one by one on a source; nvcc may well compile it."""


def lean_source(source: str) -> tuple[str, tuple[str, ...]]:
    """``source`` without the headers that the prelude stands for, and which these are.

    Raises:
        LeanError: When it needs something else.
    """
    wanted: list[str] = []

    def on_include(found: re.Match[str]) -> str:
        name = found.group(1)
        if name in HEADERS:
            wanted.append(name)
        elif name in _UNUSED:
            if _UNUSED[name].search(_without_rtc(source)):
                raise LeanError(f"it uses {name}")
        elif name not in OWN_HEADERS and not name.startswith("cuda/std/"):
            raise LeanError(f"it includes {name}")
        return ""

    text = _INCLUDE.sub(on_include, source)
    return text, tuple(sorted(set(wanted)))


def _without_rtc(source: str) -> str:
    """``source`` without what is for NVRTC alone, which TVM puts first."""
    return re.sub(r"#ifdef __CUDACC_RTC__\n.*?\n#else\n", "", source, count=1, flags=re.DOTALL)


class LeanCompiler:
    """nvcc's parts for one GPU, and the preludes made so far.

    Args:
        options: What nvcc is told besides the files, the GPU among it.

    Raises:
        LeanError: When nvcc does not show its parts in the form that is known here.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="tvmopt-nvcc-")
        self._folder = Path(self._held.name)
        self._preludes: dict[tuple[str, ...], Path] = {}
        self._one = threading.Lock()  # the files of a kernel have the names of the last one's
        command = [
            "nvcc", "--dryrun", "-w", "--keep", "--keep-dir", str(self._folder), "--cubin",
            *options, str(self._folder / f"{_NAME}.cu"), "-o", str(self._folder / f"{_NAME}.cubin"),
        ]  # fmt: skip
        (self._folder / f"{_NAME}.cu").write_text("")
        shown = _run(command, None)
        self._environment, commands = parts_of(shown, dict(os.environ))
        try:
            [self._preprocess] = [c for c in commands if "-E" in c]
            [self._compile] = [c for c in commands if Path(c[0]).name == "cicc"]
            [self._assemble] = [c for c in commands if Path(c[0]).name == "ptxas"]
            [self._text] = [a for a in self._compile if a.endswith(".ii")]
        except ValueError as error:
            raise LeanError("nvcc does not work in three steps here") from error
        write_stand_ins(self._folder / "stand-ins")
        (self._folder / f"{_NAME}.cubin").unlink(missing_ok=True)

    def cubin(self, source: str) -> bytes:
        """Machine code of ``source``.

        Raises:
            LeanError: When a step fails.
        """
        text, headers = lean_source(source)
        result = self._folder / f"{_NAME}.cubin"
        with self._one:
            Path(self._text).write_text(f'#include "{self._prelude(headers)}"\n{text}')
            _run(self._compile, self._environment)
            _run(self._assemble, self._environment)
            code = result.read_bytes()
            result.unlink()  # or what fails to write the next would pass with this
        return code

    def _prelude(self, headers: tuple[str, ...]) -> Path:
        if headers not in self._preludes:
            name = f"prelude{len(self._preludes)}"
            source, result = (self._folder / f"{name}.{end}" for end in ("cu", "h"))
            source.write_text(prelude_source(headers))
            _run(_of_prelude(self._preprocess, self._folder, source, result), self._environment)
            self._preludes[headers] = result
        return self._preludes[headers]


def _of_prelude(command: Sequence[str], folder: Path, source: Path, result: Path) -> list[str]:
    """The preprocessor's command for a prelude: its macros are kept, host headers stood in for."""
    changed = [*command[:1], "-nostdinc", "-dD", "-P", f"-I{folder / 'stand-ins'}"]
    skip = False
    for this, after in zip(command[1:], [*command[2:], ""], strict=True):
        if skip:
            skip = False
        elif this == "-include" and after == "cuda_runtime.h":
            skip = True
        elif this == "-o":
            changed += ["-o", str(result)]
            skip = True
        elif this == str(folder / f"{_NAME}.cu"):
            changed.append(str(source))
        else:
            changed.append(this)
    return changed


def parts_of(shown: str, environment: Mapping[str, str]) -> tuple[dict[str, str], list[list[str]]]:
    """Environment and commands that ``nvcc --dryrun`` shows.

    Args:
        shown: What it prints: lines ``#$ NAME=value`` and ``#$ command``.
        environment: The environment that it ran in.

    Returns:
        The environment of the commands, and the words of each.
    """
    known, commands = dict(environment), []
    for line in shown.splitlines():
        if not line.startswith("#$ "):
            continue
        rest = line.removeprefix("#$ ").strip()
        named = re.match(r"(\w+)=(.*)$", rest)
        if named:
            known[named.group(1)] = named.group(2)
            continue
        try:
            words = shlex.split(string.Template(rest).safe_substitute(known))
        except ValueError as error:
            raise LeanError("nvcc shows a command that is none of a shell") from error
        if words:
            commands.append(words)
    return known, commands


def _run(command: Sequence[str], environment: Mapping[str, str] | None) -> str:
    """What ``command`` printed.

    Raises:
        LeanError: When it fails.
    """
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeanError(f"{Path(command[0]).name} did not run: {error}") from error
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise LeanError(f"{Path(command[0]).name} refused it: {said[-2000:]}")
    return said


@functools.cache
def lean_compiler(options: tuple[str, ...]) -> LeanCompiler | None:
    """The compiler for ``options``, of this process; None where nvcc cannot be taken apart."""
    try:
        compiler = LeanCompiler(options)
        compiler.cubin('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1.0f; }')
    except LeanError:
        return None
    return compiler
