"""Run one compiled kernel as a program for another CPU under QEMU."""

from __future__ import annotations

import functools
import re
import signal
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi.libinfo

from tvmopt.errors import (
    ArtifactError,
    BuildError,
    ConfigError,
    EnvironmentSetupError,
    LimitError,
)

from .tools import Tools, find_tools

_FOLDER = Path(__file__).parent
_DLPACK_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
# Exit statuses of main.c.
_REFUSED, _BAD_INPUT, _NO_MEMORY, _OVERRUN = 101, 102, 103, 104
_SAY = {
    _BAD_INPUT: "at most 64 arrays of 16 dimensions can be handed over",
    _NO_MEMORY: "arrays and workspaces must fit 512 MiB together",
    _OVERRUN: "a kernel must write inside its arrays, but it wrote behind the end of one",
}


def run(
    lib: Any,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    isa: str,
    *,
    cpu: str = "",
    timeout_s: float = 300.0,
) -> list[np.ndarray]:
    """Call the one function of ``lib`` on ``inputs`` and ``outputs`` under emulation.

    A parallel loop runs as two tasks, one after the other. Arrays are aligned to exactly 64 bytes,
    the alignment that TVM guarantees to kernels.

    Args:
        lib: Result of ``tvm.tirx.build`` for a module with one function.
        inputs: Its first arguments.
        outputs: Its last arguments, with their contents before the call; they are not changed.
        isa: Instruction set of the code, ``"aarch64"``, ``"hexagon"`` or ``"riscv64"``.
        cpu: QEMU's name of the CPU. The default has every feature that QEMU knows; on RISC-V it has
            128-bit vectors.
        timeout_s: Time limit of the call in seconds.

    Returns:
        New arrays with the contents of ``outputs`` after the call.

    Raises:
        ConfigError: When the code or QEMU does not support ``isa``, ``cpu`` or an argument.
        EnvironmentSetupError: When a tool is missing, or QEMU is too old for the code.
        BuildError: When the kernel calls an undefined function.
        ArtifactError: When the code crashes, for example on an instruction that ``cpu`` lacks.
        LimitError: When the call exceeds the time limit.
    """
    tools = find_tools(isa)
    if isinstance(tools, str):
        raise EnvironmentSetupError(tools)
    cpu = cpu or tools.cpu
    with tempfile.TemporaryDirectory(prefix="tvmopt-emulate-") as folder:
        program = _link(tools, lib, Path(folder))
        command = [tools.emulator, "-cpu", cpu, str(program)]
        try:
            done = subprocess.run(
                command,
                input=_message(inputs, outputs),
                capture_output=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise LimitError(
                f"a kernel must end within {timeout_s:g} s under {tools.emulator}, but it did not; "
                "give it a smaller shape or more time"
            ) from error
    _check(done, tools, cpu)
    return _results(done.stdout, outputs)


def _link(tools: Tools, lib: Any, folder: Path) -> Path:
    """Return the program that calls ``lib``."""
    objects = [folder / f"{Path(source).stem}.o" for source in tools.sources]
    for path, content in zip(objects, _compiled(tools), strict=True):
        path.write_bytes(content)
    kernel, program = folder / "kernel.o", folder / "program"
    lib.write_to_file(str(kernel), "o")
    files = [str(path) for path in (*objects, kernel)]
    command = [*tools.link, *files, *tools.libraries, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        missing = re.findall(r"undefined (?:symbol:|reference to) *[`']?(\w+)", done.stderr)
        calls = ", ".join(dict.fromkeys(missing))
        says = f"it calls {calls}" if missing else _one_line(done.stderr)
        raise BuildError(
            f"a kernel must be {tools.isa} code that calls nothing but what C's library has and "
            f"{', '.join(tools.sources)} of tests/emulator/ give, but {says}; "
            "build it for that CPU, without such calls"
        )
    return program


@functools.cache
def _compiled(tools: Tools) -> tuple[bytes, ...]:
    """Return the compiled objects of ``tools.sources``."""
    made = []
    includes = tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()
    for source in tools.sources:
        with tempfile.TemporaryDirectory(prefix="tvmopt-emulate-") as folder:
            path = Path(folder) / "made.o"
            flags = [f"-I{include}" for include in includes]
            command = [*tools.compile, *flags, str(_FOLDER / source), "-o", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            if done.returncode:
                raise EnvironmentSetupError(
                    f"{tools.compile[0]} must compile {source}, but it says: "
                    f"{_one_line(done.stderr)[-500:]}; "
                    f"install all of it (Debian: apt-get install {' '.join(tools.packages)})"
                )
            made.append(path.read_bytes())
    return tuple(made)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _message(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bytes:
    """Return the input of main.c."""
    arrays = [np.ascontiguousarray(array) for array in (*inputs, *outputs)]
    words = [len(arrays), len(outputs)]
    for array in arrays:
        words += [*_dlpack_type(array.dtype), array.ndim, array.nbytes, *array.shape]
    return b"".join([struct.pack(f"<{len(words)}q", *words), *(a.tobytes() for a in arrays)])


def _dlpack_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the DLPack type code and bits of a dtype."""
    kind = re.match(r"[a-z]*", dtype.name)
    code = _DLPACK_CODES.get(kind.group() if kind else "")
    if code is None:
        raise ConfigError(
            f"arrays must hold integers, floats or booleans, but got {dtype.name}; convert them"
        )
    return code, 8 * dtype.itemsize


def _results(data: bytes, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    made = []
    for like in outputs:
        made.append(np.frombuffer(data[: like.nbytes], like.dtype).reshape(like.shape).copy())
        data = data[like.nbytes :]
    return made


def _check(done: subprocess.CompletedProcess[bytes], tools: Tools, cpu: str) -> None:
    """Raise the error of an exit status."""
    status = done.returncode
    if status == 0:
        return
    said = _one_line(done.stderr.decode(errors="replace"))
    where = f"{tools.emulator} -cpu {cpu}"
    if status == _REFUSED:
        raise ConfigError(f"arguments must be what the kernel was built for, but it says: {said}")
    if status in _SAY:
        raise ArtifactError(f"{_SAY[status]}; seen with {where}")
    if status in (-signal.SIGILL, 128 + signal.SIGILL):
        raise ArtifactError(
            f"every instruction of a kernel must be known to the CPU, but {where} died of an "
            "illegal instruction; name a CPU with every feature of the kernel's target, or build "
            "it for this one"
        )
    if "Assertion" in said and tools.emulator in said:
        raise EnvironmentSetupError(
            f"QEMU must know every instruction of a kernel, but {where} itself failed: {said}; "
            "take a newer one (8.1 or later for floats in vectors of RISC-V), or build for less"
        )
    if status > 0 and tools.emulator in said:
        raise ConfigError(
            f"cpu must be one of `{tools.emulator} -cpu help`, but got {cpu!r}: {said}"
        )
    raise ArtifactError(f"a kernel must end by itself, but {where} ended with {status}: {said}")
