"""Import TVM without PyTorch."""

from __future__ import annotations

import importlib
import sys


def import_tvm_without_torch() -> None:
    """Import TVM; where PyTorch is installed, TVM's FFI would import it too.

    That takes seconds and 200 MB, starts threads, and initialises CUDA, which no forked child can
    then use. PyTorch can be imported as ever afterwards.
    """
    is_blocked = "torch" not in sys.modules
    if is_blocked:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("tvm")
    finally:
        if is_blocked:
            del sys.modules["torch"]
