"""Emulate Intel AMX in software, for tests of AMX kernels on a CPU without AMX.

The CPU raises an illegal-instruction signal, and ``amx.c`` executes the instruction in its signal
handler, in any thread. An instruction takes one or two microseconds, so timings mean nothing. On a
CPU with AMX and its permission, instructions run natively and are not counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tvmopt import host
from tvmopt.digest import sha256_file
from tvmopt.errors import EnvironmentSetupError, TvmoptError

_SOURCE = Path(__file__).with_name("amx.c")
_OPTIONS = ("-O3", "-mavx2", "-mfma", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")


class EmulationError(TvmoptError):
    """Code used AMX in a way that would fault on a CPU."""


class Counts:
    """Instructions executed so far, by mnemonic."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getitem__(self, mnemonic: str) -> int:
        """Return how often ``mnemonic`` was executed.

        Raises:
            KeyError: When ``mnemonic`` is no AMX instruction.
        """
        return self.as_dict()[mnemonic]

    def as_dict(self) -> dict[str, int]:
        """Return all counts."""
        lib = self._library
        return {lib.amx_mnemonic(i).decode(): lib.amx_count(i) for i in range(lib.amx_mnemonics())}

    def error(self) -> str | None:
        """Return the first use that would fault on a CPU; None when there was none."""
        return self._library.amx_error().decode() or None


def install() -> Counts:
    """Emulate AMX instructions from now on; a fault aborts the process.

    It is for processes that run candidates; tests use :func:`emulated`.

    Raises:
        EnvironmentSetupError: When the emulator cannot be built here.
    """
    return _install(aborts=True)


def uninstall() -> None:
    """Undo :func:`install`: restore the previous signal handler."""
    _library().amx_uninstall()


@contextlib.contextmanager
def emulated() -> Iterator[Counts]:
    """Emulate AMX instructions in the context; counts start at 0.

    Raises:
        EmulationError: At exit, when an instruction would fault on a CPU.
        EnvironmentSetupError: When the emulator cannot be built here.
    """
    counts = _install(aborts=False)
    try:
        yield counts
    finally:
        uninstall()
    if (error := counts.error()) is not None:
        raise EmulationError(f"AMX must be used as Intel's manual says, but {error}")


def _install(aborts: bool) -> Counts:
    library = _library()
    library.amx_reset()
    if library.amx_install(int(aborts)) != 0:
        raise EnvironmentSetupError("the handler of SIGILL must be set, but Linux refused it")
    return Counts(library)


@functools.cache
def _library() -> ctypes.CDLL:
    if host.isa() != "x86_64" or not {"avx2", "fma"} <= host.cpu_flags():
        raise EnvironmentSetupError(
            f"AMX can be emulated on x86_64 with AVX2 and FMA alone, but this machine is "
            f"{host.isa()} ({host.cpu_model()})"
        )
    library = ctypes.CDLL(str(_built()))
    for name in ("amx_mnemonic", "amx_error"):
        getattr(library, name).restype = ctypes.c_char_p
    library.amx_count.restype = ctypes.c_uint64
    return library


def _built() -> Path:
    """Return the shared object; build it unless a process of this user did so before."""
    compiler = shutil.which("gcc") or shutil.which("g++") or shutil.which("cc")
    if compiler is None:
        raise EnvironmentSetupError(
            "emulating AMX needs a C compiler, but gcc, g++ and cc are not found; install one"
        )
    folder = Path(tempfile.gettempdir()) / f"tvmopt-emulate-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise EnvironmentSetupError(f"'{folder}' must belong to this user; remove it")
    path = folder / f"amx-{sha256_file(_SOURCE)[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            fresh = Path(temporary) / path.name
            command = [compiler, "-x", "c", *_OPTIONS, str(_SOURCE), "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise EnvironmentSetupError(
                    f"the AMX emulator must compile, but it does not: {done.stderr[-500:]}"
                )
            fresh.rename(path)
    return path
