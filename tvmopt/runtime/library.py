"""Load the library of a compiled model, also from sealed memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, BinaryIO

from tvmopt.runtime.executor import Executor, Spec, VirtualMachine
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
    path: str, outputs: Sequence[Spec], *, native: bool, threads: int, device: Any = None
) -> Executor:
    """Return the executor of the library at ``path``.

    Args:
        path: The library.
        outputs: Shape and dtype of each output.
        native: Whether the library is native code; else TVM's virtual machine interprets it.
        threads: Threads of a call of a native library.
        device: TVM device of the virtual machine; None is the CPU.
    """
    if native:
        return NativeExecutor(path, outputs, threads)
    import tvm

    return VirtualMachine(_module(path), tvm.cpu() if device is None else device)


def _module(path: str) -> Any:
    import tvm_ffi

    module = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
    # As in tvm_ffi.load_module: objects that the library registers must not outlive its code.
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)
    return module
