"""Measure cache and DRAM bandwidth relative to L1, once per machine, and scale the cost models.

The default bandwidths of :class:`~tvmopt.device.cpu.CpuArch` belong to the machine on which the
cost models of :mod:`tvmopt.kernels` were fitted. Measured ratios scale them by powers of two: the
ranking of configurations depends on no finer difference, and noise on busy machines is smaller. A
cache file keeps the ratios, so that rankings on a machine are reproducible.
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

#: Bandwidth of each level relative to L1, on the machine of the fits.
FITTED = {"l2": 0.56, "l3": 0.11, "dram": 0.065}

# Bytes per cycle of L2, L3 and DRAM for vectors of 32 bytes, where ratios to L1 do not travel: L1
# itself is half as fast as on the machine of the fits. Fit to top-1 schedules of six networks on a
# Zen 3, see benchmarks/results/2026-11-26-avx2-bandwidths.md.
_AVX2_BYTES = 32
_AVX2_L2, _AVX2_L3, _AVX2_DRAM = 64.0, 20.0, 8.0

# Plausible ratios; the cache file is damaged if it holds others.
_LEAST, _MOST = 0.001, 2.0
_ACCUMULATORS, _REPEATS = 8, 7
# Minimum bytes read per call; buffer size for DRAM, larger than any cache.
_READ, _MEMORY = 16 * 1024 * 1024, 256 * 1024 * 1024


def with_measured_bandwidths(arch: CpuArch) -> CpuArch:
    """Return ``arch`` with bandwidths scaled to the host, which must be able to run its code.

    With vectors of 32 bytes (AVX2) the bandwidths are a fit instead.
    """
    if arch.simd_bytes == _AVX2_BYTES:
        return dataclasses.replace(
            arch, l2_bandwidth=_AVX2_L2, l3_bandwidth=_AVX2_L3, dram_bandwidth=_AVX2_DRAM
        )
    return scaled(arch, _ratios(arch))


def scaled(arch: CpuArch, ratios: Mapping[str, float]) -> CpuArch:
    """Return ``arch`` with bandwidths scaled by measured ratios, decreasing from level to level.

    Args:
        arch: A CPU with the default (fitted) bandwidths.
        ratios: Measured bandwidth of ``l2``, ``l3`` and ``dram`` relative to L1.
    """
    before, found = math.inf, {}
    for level, fitted in FITTED.items():
        rate = getattr(arch, f"{level}_bandwidth") * scale(ratios[level], fitted)
        before = found[f"{level}_bandwidth"] = min(before, rate)
    return dataclasses.replace(arch, **found)


def scale(measured: float, fitted: float) -> float:
    """Return the power of two nearest to ``measured / fitted``, on a log scale."""
    return 2.0 ** round(math.log2(measured / fitted))


@functools.cache
def _ratios(arch: CpuArch) -> dict[str, float]:
    """Return the ratios by level from the cache file; measure and store them if missing."""
    path = cache_file()
    key = f"{host.cpu_model()} {arch.mcpu} {arch.l1_bytes} {arch.l2_bytes}"
    known = _read(path)
    if key not in known:
        known[key] = measure(arch)
        # If the file cannot be written, the next process measures again.
        with contextlib.suppress(OSError):
            _write(path, known)
    return known[key]


def cache_file() -> Path:
    """Return the path of the cache file, under ``XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvmopt" / "bandwidth.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return the content of the cache file; empty if it is missing or damaged."""
    try:
        if not path.is_file():  # a read from a pipe might block
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
    """Measure the bandwidth of L2, L3 and DRAM relative to L1, on one core; under a second.

    Each level's time is the fastest of several reads of a buffer that fits the level, but not the
    level above.
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
    passes = {level: max(1, _READ // (4 * width * rows[level])) for level in sizes}
    functions = {
        level: _sum_of_rows(rows[level], width, passes[level]).with_attr("global_symbol", level)
        for level in sizes
    }
    built = tvm.tirx.build(tvm.IRModule(functions), target=arch.to_tvm(), pipeline="s_tir")
    total = tvm.runtime.tensor(np.zeros(width, "float32"))
    rates = {}
    for level in sizes:
        data = tvm.runtime.tensor(np.zeros((rows[level], width), "float32"))
        timer = built.time_evaluator(level, tvm.cpu(), number=1, repeat=_REPEATS)
        seconds = min(timer(data, total).results)
        rates[level] = rows[level] * passes[level] / seconds
    return {level: rates[level] / rates["l1"] for level in FITTED}


def _sum_of_rows(rows: int, width: int, passes: int) -> Any:
    """Return a function that sums ``rows`` x ``width`` float32, ``passes`` times, in registers."""
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def main(
        data: T.Buffer((rows, width), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((width,), "float32"),  # type: ignore[valid-type]
    ) -> None:
        total = T.alloc_buffer((width,), "float32", scope="local")
        for i in T.vectorized(width):
            total[i] = T.float32(0)
        for _ in T.serial(passes):
            for k in T.serial(rows):
                for i in T.vectorized(width):
                    total[i] = total[i] + data[k, i]
        for i in T.vectorized(width):
            out[i] = total[i]

    return main
