"""Load the library of a compiled model, also from sealed memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, BinaryIO

from tvmopt.runtime.executor import Executor, VirtualMachine
from tvmopt.runtime.native import NativeExecutor

_OPENED = itertools.count(1)


def library_path(file: BinaryIO) -> str:
    """Return a path of ``file``, a :func:`tvmopt.runtime.checks.sealed_copy`, to load it from.

    The dynamic linker opens paths: ``/proc/self/fd/N`` is the open file itself. The linker
    identifies libraries by path, and ``N`` is reused after the file is closed. Therefore the path
    encodes a new number each time in slashes, which the system ignores: ``fd//`` is bit 0,
    ``fd/./`` is bit 1.
    """
    bits = f"{next(_OPENED):b}"
    unique = "".join("./" if bit == "1" else "/" for bit in bits)
    return f"/proc/self/fd/{unique}{file.fileno()}"


def open_library(
    path: str, *, threads: int, native: bool | None = None, device: Any = None
) -> Executor:
    """Return the executor of the library at ``path``.

    Args:
        path: The library.
        threads: Threads of a call of a native library; 0: as many as it was built for.
        native: Whether the library is native code; else TVM's virtual machine interprets it. None
            looks for itself.
        device: TVM device of the virtual machine; None is the CPU.
    """
    if native or (native is None and b"tvmopt_tensors" in Path(path).read_bytes()):
        return NativeExecutor(path, threads)
    import tvm

    return VirtualMachine(_module(path), tvm.cpu() if device is None else device)


def _module(path: str) -> Any:
    import tvm_ffi

    module = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    # As in tvm_ffi.load_module: objects that the library registers must not outlive its code.
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)
    return module
