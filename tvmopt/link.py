"""Choose the linker of libraries: this machine's compiler, a cross compiler, or Zig from PyPI."""

from __future__ import annotations

import functools
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.errors import BuildError, EnvironmentSetupError

# Debian's names of the platforms that libraries are linked for.
_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}
# The C library that TVM's own wheels need at least.
_GLIBC = "2.28"
# For the C sources of the runtime; object files are optimised already.
_OPTIONS = ("-O2", "-pthread")


def cxx_compiler() -> str:
    """Path of the compiler that links libraries for this machine.

    Raises:
        EnvironmentSetupError: When there is none; TVM's own message would be a TypeError.
    """
    from tvm.support import cc

    found = cc.get_cc()
    if not found or not shutil.which(found):
        raise EnvironmentSetupError(
            "a C++ compiler must be installed to link the library, but none was found; "
            "install g++ (Debian: apt-get install g++) or set CXX to one"
        )
    return str(found)


def isa_of(target: str) -> str:
    """Instruction set of a TVM target, as its JSON text says; empty for this machine's."""
    return str(json.loads(target).get("mtriple", "")).split("-")[0]


def compile_command(isa: str = "") -> tuple[str, ...]:
    """Return the start of the command that compiles C for ``isa``, this machine's by default.

    For another platform it is the GNU cross compiler, and Zig where that is not installed.

    Raises:
        EnvironmentSetupError: When nothing here compiles for ``isa``; says both ways out.
        BuildError: When no Linux runs on ``isa``, which has no shared libraries then.
    """
    if isa in ("", host.isa()):
        return (cxx_compiler(), *_OPTIONS)
    if isa == "hexagon":
        raise BuildError(
            "a library must be for a CPU that Linux runs on, but got hexagon; only single kernels "
            "can be compiled for it"
        )
    found = shutil.which(f"{isa}-linux-gnu-gcc")
    if found:
        return (found, *_OPTIONS)
    if importlib.util.find_spec("ziglang"):
        target = f"{isa}-linux-gnu.{_GLIBC}"
        return (sys.executable, "-m", "ziglang", "cc", "-target", target, *_OPTIONS)
    name = isa.replace("_", "-") + "-linux-gnu"
    raise EnvironmentSetupError(
        f"{isa}-linux-gnu-gcc or Zig must be installed to link a library for {isa}, but neither is "
        f"found; install one (Debian: apt-get install gcc-{name} libc6-dev-{_DEBIAN[isa]}-cross; "
        'anywhere: pip install "tvmopt[cross]")'
    )


def link_options(isa: str = "") -> dict[str, Any]:
    """What ``export_library`` must be told to link for ``isa``, this machine's by default.

    Raises:
        EnvironmentSetupError: As of :func:`compile_command`.
        BuildError: As of :func:`compile_command`.
    """
    return {"fcompile": functools.partial(_link, compile_command(isa))}


def compile_objects(command: Sequence[str], sources: Sequence[Path], folder: Path) -> list[Path]:
    """Compile C sources to object files in ``folder``, all at once; return their paths.

    Args:
        command: Start of the command, of :func:`compile_command`.
        sources: C sources; their names differ.
        folder: Folder to write into.

    Raises:
        BuildError: When a source does not compile; has the compiler's message.
    """
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [*command, "-fPIC", "-c", "-o", str(path), str(source)]
        for path, source in zip(objects, sources, strict=True)
    ]
    running = [
        subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for one in commands
    ]
    # All are waited for before one's failure is said.
    said = [process.communicate()[1].decode(errors="replace") for process in running]
    for process, source, text in zip(running, sources, said, strict=True):
        if process.returncode:
            raise BuildError(
                f"{source.name} must compile with {shlex.join(command)}, but the compiler says: "
                f"{_end_of(text)}"
            )
    return objects


def _link(command: Sequence[str], output: str, objects: str | Sequence[str], **_: object) -> None:
    files = [objects] if isinstance(objects, str) else list(objects)
    done = subprocess.run(
        [*command, "-shared", "-fPIC", "-o", output, *files],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise BuildError(
            f"the library must link with {shlex.join(command)}, but the linker says: "
            f"{_end_of(done.stderr)}"
        )


def _end_of(text: str) -> str:
    return " ".join(text.split())[-300:]
