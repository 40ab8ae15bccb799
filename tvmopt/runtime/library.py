"""Load a compiled model's library from sealed memory, which cannot change after hashing."""

from __future__ import annotations

import itertools
from typing import Any, BinaryIO

_OPENED = itertools.count(1)


def open_library(file: BinaryIO) -> Any:
    """Return the TVM module in ``file``, a :func:`tvmopt.runtime.checks.sealed_copy`.

    The dynamic linker opens paths: ``/proc/self/fd/N`` is the open file itself. The linker
    identifies libraries by path, and ``N`` is reused after the file is closed. Therefore the path
    encodes a new number each time in slashes, which the system ignores: ``fd//`` is bit 0,
    ``fd/./`` is bit 1.
    """
    import tvm_ffi

    bits = f"{next(_OPENED):b}"
    unique = "".join("./" if bit == "1" else "/" for bit in bits)
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
    module = load(f"/proc/self/fd/{unique}{file.fileno()}", "so")
    # As in tvm_ffi.load_module: objects that the library registers must not outlive its code.
    tvm_ffi.get_global_func("ffi.ModuleGlobalsAdd")(module)
    return module
