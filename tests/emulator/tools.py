"""Find cross compilers and user-mode emulators, as Debian packages them."""

from __future__ import annotations

import dataclasses
import shutil

from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Tools:
    """The cross compiler and emulator of one instruction set.

    Attributes:
        isa: The instruction set.
        emulator: QEMU user-mode emulator of the instruction set.
        cpu: The emulator's CPU with the most features.
        compile: Command that compiles C; sources and ``-o`` follow.
        link: Command that links objects; they and ``-o`` follow.
        libraries: Linker arguments after the objects.
        sources: C files of this folder that the program consists of.
        packages: Debian packages of these tools.
    """

    isa: str
    emulator: str
    cpu: str
    compile: tuple[str, ...]
    link: tuple[str, ...]
    libraries: tuple[str, ...]
    sources: tuple[str, ...]
    packages: tuple[str, ...]

    @property
    def programs(self) -> tuple[str, ...]:
        """Return every program that is called."""
        return tuple(dict.fromkeys((self.emulator, self.compile[0], self.link[0])))


def _with_c_library(isa: str, debian: str, cpu: str) -> Tools:
    gcc = f"{isa}-linux-gnu-gcc"
    return Tools(
        isa=isa,
        emulator=f"qemu-{isa}",
        cpu=cpu,
        compile=(gcc, "-O2", "-c"),
        link=(gcc, "-static"),
        libraries=("-lm",),
        sources=("main.c",),
        packages=("qemu-user", f"gcc-{isa}-linux-gnu", f"libc6-dev-{debian}-cross"),
    )


_TOOLS = {
    "aarch64": _with_c_library("aarch64", "arm64", "max"),
    # 128 bits, the minimum of V: wider registers would hide accesses out of bounds.
    "riscv64": _with_c_library("riscv64", "riscv64", "rv64,v=true,vext_spec=v1.0,vlen=128"),
    "hexagon": Tools(
        isa="hexagon",
        emulator="qemu-hexagon",
        cpu="v67",
        compile=(
            *("clang", "--target=hexagon-unknown-linux-musl", "-mv66", "-G0", "-O2"),
            *("-ffreestanding", "-fno-builtin", "-c"),
        ),
        link=("ld.lld",),
        libraries=(),
        sources=("main.c", "hexagon.c"),
        packages=("qemu-user", "clang", "lld"),
    ),
}


def find_tools(isa: str) -> Tools | str:
    """Return the tools for ``isa``, or what is missing and how to install it.

    Raises:
        ConfigError: When there is no emulation of ``isa``.
    """
    tools = _TOOLS.get(isa)
    if tools is None:
        raise ConfigError(f"isa must be one of {', '.join(_TOOLS)} to be emulated, but got {isa!r}")
    missing = [program for program in tools.programs if shutil.which(program) is None]
    if not missing:
        return tools
    return (
        f"{', '.join(missing)} must be installed to run {isa} code here; "
        f"install them (Debian: apt-get install {' '.join(tools.packages)})"
    )
