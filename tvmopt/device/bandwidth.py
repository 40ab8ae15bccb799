"""How fast this machine's caches and memory are beside its L1 cache: measured once, remembered.

The bandwidths of :class:`~tvmopt.device.cpu.CpuArch` are those with which the models of
:mod:`tvmopt.kernels` were fitted. What another machine measures scales them, by powers of two: the
order of configurations depends on no finer difference, and timings on busy machines differ by
less. The file with the measured ratios keeps the choices of a machine the same from run to run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.device.cpu import CpuArch

#: Bytes from each level in the time of one byte from L1, on the machine of the fits.
FITTED = {"l2": 0.56, "l3": 0.11, "dram": 0.065}

# Ratios that a machine may have; what the file says beyond is damage.
_LEAST, _MOST = 0.001, 2.0
_ACCUMULATORS, _REPEATS = 8, 7
# Bytes read by one call, at least, and the size of what is in no cache.
_READ, _MEMORY = 16 * 1024 * 1024, 256 * 1024 * 1024


def with_measured_bandwidths(arch: CpuArch) -> CpuArch:
    """``arch``, its bandwidths scaled to this machine, on which it must be able to run."""
    return scaled(arch, _ratios(arch))


def scaled(arch: CpuArch, ratios: Mapping[str, float]) -> CpuArch:
    """``arch``, bandwidths scaled by measured ratios; no level's is above that of the one before.

    Args:
        arch: A CPU with the bandwidths of the fits.
        ratios: Bytes from ``l2``, ``l3`` and ``dram`` in the time of one byte from L1.
    """
    before, found = math.inf, {}
    for level, fitted in FITTED.items():
        rate = getattr(arch, f"{level}_bandwidth") * scale(ratios[level], fitted)
        before = found[f"{level}_bandwidth"] = min(before, rate)
    return dataclasses.replace(arch, **found)


def scale(measured: float, fitted: float) -> float:
    """The power of two nearest to ``measured / fitted``."""
    return 2.0 ** round(math.log2(measured / fitted))


@functools.cache
def _ratios(arch: CpuArch) -> dict[str, float]:
    """Ratios by level: from the file, or measured and written there."""
    path = cache_file()
    key = f"{host.cpu_model()} {arch.mcpu} {arch.l1_bytes} {arch.l2_bytes}"
    known = _read(path)
    if key not in known:
        known[key] = measure(arch)
        # A home that cannot be written to only means measuring again.
        with contextlib.suppress(OSError):
            _write(path, known)
    return known[key]


def cache_file() -> Path:
    """Where measured ratios are kept: under ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvmopt" / "bandwidth.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    """What the file holds; nothing when there is none, or when it is damaged."""
    try:
        if not path.is_file():  # reading a pipe might never end
            return {}
        known = json.loads(path.read_text())
        return {
            str(key): {level: float(ratios[level]) for level in FITTED}
            for key, ratios in known.items()
            if all(_LEAST < float(ratios[level]) <= _MOST for level in FITTED)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _write(path: Path, known: dict[str, dict[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(known, file, indent=1)
    try:
        Path(file.name).replace(path)
    except OSError:
        Path(file.name).unlink()
        raise


def measure(arch: CpuArch) -> dict[str, float]:
    """Bytes from L2, L3 and memory in the time of one byte from L1, of one core; under a second.

    Each is the fastest of a few readings of a buffer that fits the level and not the one above.
    """
    import numpy as np
    import tvm

    sizes = {
        "l1": arch.l1_bytes // 2,
        "l2": arch.l2_bytes // 2,
        "l3": min(4 * arch.l2_bytes, max(arch.l3_bytes // 2, 2 * arch.l2_bytes)),
        "dram": _MEMORY,
    }
    width = _ACCUMULATORS * arch.lanes("float32")
    rows = {level: max(1, size // (4 * width)) for level, size in sizes.items()}
    turns = {level: max(1, _READ // (4 * width * rows[level])) for level in sizes}
    functions = {
        level: _sum_of_rows(rows[level], width, turns[level]).with_attr("global_symbol", level)
        for level in sizes
    }
    built = tvm.tirx.build(tvm.IRModule(functions), target=arch.to_tvm(), pipeline="s_tir")
    total = tvm.runtime.tensor(np.zeros(width, "float32"))
    rates = {}
    for level in sizes:
        data = tvm.runtime.tensor(np.zeros((rows[level], width), "float32"))
        timer = built.time_evaluator(level, tvm.cpu(), number=1, repeat=_REPEATS)
        seconds = min(timer(data, total).results)
        rates[level] = rows[level] * turns[level] / seconds
    return {level: rates[level] / rates["l1"] for level in FITTED}


def _sum_of_rows(rows: int, width: int, turns: int) -> Any:
    """Read ``rows`` x ``width`` float32 over and over, as vectors into independent registers."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def main(
        data: T.Buffer((rows, width), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((width,), "float32"),  # type: ignore[valid-type]
    ) -> None:
        total = T.alloc_buffer((width,), "float32", scope="local")
        for i in T.vectorized(width):
            total[i] = T.float32(0)
        for _ in T.serial(turns):
            for k in T.serial(rows):
                for i in T.vectorized(width):
                    total[i] = total[i] + data[k, i]
        for i in T.vectorized(width):
            out[i] = total[i]

    return main
