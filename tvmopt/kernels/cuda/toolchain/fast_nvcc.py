"""Fast nvcc: run its steps with a preprocessed prelude of headers, 0.1 s instead of 0.5 s a kernel.

For each source, nvcc preprocesses megabytes of host and CUDA headers, which ``cicc`` then parses. A
generated kernel needs only the declarations of device functions. They are preprocessed once
(:mod:`.prelude`); then the ``cicc`` and ``ptxas`` commands that ``nvcc --dryrun`` prints run on the
kernel's own text. :class:`LeanError` means that this does not work and nvcc itself must compile.
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

# Stem of the files that are compiled; preludes and stand-in headers share their folder.
_NAME = "kernel"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"][ \t]*$', re.MULTILINE)
# Headers that TVM includes but hardly any kernel uses, and the pattern of a use. The prelude
# provides a thread's rank in its block.
_UNUSED = {
    "cuda/barrier": re.compile(r"\bcuda::"),
    "cooperative_groups.h": re.compile(
        r"\b(cooperative_groups::|cg::(?!this_thread_block\(\)\.thread_rank\(\)))"
    ),
}
_TIMEOUT_S = 300.0


class LeanError(RuntimeError):
    """The steps of nvcc do not work one by one on a source; nvcc itself may compile it."""


def lean_source(source: str) -> tuple[str, tuple[str, ...]]:
    """Strip the includes that the prelude replaces.

    Returns:
        The source without includes, and the headers that its prelude needs.

    Raises:
        LeanError: When it includes or uses something else.
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
    """Return ``source`` without the NVRTC-only section, which TVM puts first."""
    return re.sub(r"#ifdef __CUDACC_RTC__\n.*?\n#else\n", "", source, count=1, flags=re.DOTALL)


class LeanCompiler:
    """The steps of nvcc (preprocess, cicc, ptxas) for one GPU, with a cache of preludes.

    Args:
        options: Options for nvcc, including the architecture.

    Raises:
        LeanError: When ``nvcc --dryrun`` does not show the three expected steps.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="tvmopt-nvcc-")
        self._folder = Path(self._held.name)
        self._preludes: dict[tuple[str, ...], Path] = {}
        self._one = threading.Lock()  # makes each prelude once
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
        """Compile ``source`` to a cubin; several threads may do so at once.

        Raises:
            LeanError: When a step fails.
        """
        text, headers = lean_source(source)
        with self._one:
            prelude = self._prelude(headers)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:

            def moved(argument: str) -> str:
                return argument.replace(str(self._folder / _NAME), str(Path(folder) / _NAME))

            Path(moved(self._text)).write_text(f'#include "{prelude}"\n{text}')
            for command in (self._compile, self._assemble):
                _run([moved(argument) for argument in command], self._environment)
            return (Path(folder) / f"{_NAME}.cubin").read_bytes()

    def _prelude(self, headers: tuple[str, ...]) -> Path:
        """Return the preprocessed prelude for ``headers``; make it once."""
        if headers not in self._preludes:
            name = f"prelude{len(self._preludes)}"
            source, result = (self._folder / f"{name}.{end}" for end in ("cu", "h"))
            source.write_text(prelude_source(headers))
            _run(_of_prelude(self._preprocess, self._folder, source, result), self._environment)
            self._preludes[headers] = result
        return self._preludes[headers]


def _of_prelude(command: Sequence[str], folder: Path, source: Path, result: Path) -> list[str]:
    """Return the preprocessor command for a prelude: keep macros, use stand-in host headers."""
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
    """Parse the output of ``nvcc --dryrun``.

    Args:
        shown: Its output: lines ``#$ NAME=value`` and ``#$ command``.
        environment: Environment in which it ran.

    Returns:
        The environment for the commands, and the arguments of each command.

    Raises:
        LeanError: When a command is no valid shell command.
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
    """Run ``command`` and return its output.

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
    """Return this process's compiler for ``options``; None where the steps do not work."""
    try:
        compiler = LeanCompiler(options)
        compiler.cubin('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1.0f; }')
    except LeanError:
        return None
    return compiler
