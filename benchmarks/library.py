"""Load libraries built by tvmopt and call them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import Call
from tvmopt import host


def library_call(path: Path, arrays: Sequence[np.ndarray]) -> Call:
    """Return a call of ``main`` of the library at ``path``; the inputs are bound once."""
    import tvm
    from tvm import relax

    host.request_amx(host.cpu_flags())
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    main, tensors = machine["main"], [tvm.runtime.tensor(array) for array in arrays]
    return lambda: main(*tensors)


def answer(path: Path, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run the library at ``path`` as ``CompiledModel`` does, with the fallback for NaN outputs."""
    import tvm
    from tvm import relax

    from tvmopt.runtime.fallback import fallback, holds_nan

    host.request_amx(host.cpu_flags())
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    outputs = arrays_of(machine["main"](*tensors))
    direct = fallback(machine, tensors)
    return arrays_of(direct()) if direct is not None and holds_nan(outputs) else outputs


def arrays_of(result: Any) -> list[np.ndarray]:
    """Convert the result of a call, one tensor or several, to arrays."""
    one = hasattr(result, "numpy") or isinstance(result, np.ndarray)
    items = [result] if one else list(result)
    return [item.numpy() if hasattr(item, "numpy") else np.asarray(item) for item in items]
