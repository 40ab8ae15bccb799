"""Open the library of a compiled model by the descriptor of a file that was checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from tvmopt.runtime.metadata import LIBRARY_FILE


def open_library(file: BinaryIO) -> Any:
    """TVM module of the shared library in ``file``, which must stay open meanwhile.

    The dynamic linker opens paths, and a path may name another file than the one that was hashed.
    ``/proc/self/fd/N`` names the open file itself. The link gives it the ending that TVM wants, in
    a folder with a new name each time: the linker takes two libraries of one path for the same.
    """
    import tvm_ffi

    with tempfile.TemporaryDirectory(prefix="tvmopt-library-") as folder:
        link = Path(folder) / LIBRARY_FILE
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        return tvm_ffi.load_module(str(link))
