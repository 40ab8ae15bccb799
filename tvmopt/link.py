"""Who links libraries: this machine's compiler, a cross compiler, or Zig from PyPI."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


def link_options(isa: str = "") -> dict[str, Any]:
    """What ``export_library`` must be told to link for ``isa``, this machine's by default.

    For another platform the GNU cross compiler is taken, and Zig where that is not installed.

    Raises:
        EnvironmentSetupError: When nothing here links for ``isa``; says both ways out.
        BuildError: When no Linux runs on ``isa``, which has no shared libraries then.
    """
    options = {"options": list(_OPTIONS)}
    if isa in ("", host.isa()):
        return {"cc": cxx_compiler(), **options}
    if isa == "hexagon":
        raise BuildError(
            "a library must be for a CPU that Linux runs on, but got hexagon; only single kernels "
            "can be compiled for it"
        )
    found = shutil.which(f"{isa}-linux-gnu-gcc")
    if found:
        return {"cc": found, **options}
    if importlib.util.find_spec("ziglang"):
        return {"fcompile": functools.partial(_link_with_zig, isa)}
    name = isa.replace("_", "-") + "-linux-gnu"
    raise EnvironmentSetupError(
        f"{isa}-linux-gnu-gcc or Zig must be installed to link a library for {isa}, but neither is "
        f"found; install one (Debian: apt-get install gcc-{name} libc6-dev-{_DEBIAN[isa]}-cross; "
        'anywhere: pip install "tvmopt[cross]")'
    )


def _link_with_zig(isa: str, output: str, objects: Sequence[str], **_: object) -> None:
    files = [objects] if isinstance(objects, str) else list(objects)
    target = f"{isa}-linux-gnu.{_GLIBC}"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *_OPTIONS]
    done = subprocess.run(
        [*command, "-shared", "-fPIC", "-o", output, *files],
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise BuildError(f"Zig must link the library for {target}, but it says: {said}")
