"""Roofline model of a layer: the larger of its compute time and its memory time.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
CACM 52(4), 2009. Peaks are nominal, since only their ratios decide the gain of a conversion.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from tvmopt import host
from tvmopt.choices import AUTO, LOW_DTYPES
from tvmopt.device import dtypes
from tvmopt.device.target import TargetSpec

HERTZ = 2.5e9  # nominal, for all CPUs
_BYTES_A_SECOND_PER_CORE = 10e9
_MOST_BYTES_A_SECOND = 200e9
_FINER = "float16"  # has 11 significant bits, bfloat16 has 8
_CONVERTS_FLOAT16 = "f16c"  # x86 vectors of float16 to float32 and back


@dataclasses.dataclass(frozen=True)
class LayerWork:
    """Compute and memory traffic of one layer.

    Attributes:
        flops: FLOPs of one run.
        elements: Elements read and written: activations, weights and the result.
    """

    flops: float
    elements: float

    def bytes(self, dtype: str) -> float:
        """Return the bytes moved when all tensors have ``dtype``."""
        return self.elements * dtypes.itemsize(dtype)


@dataclasses.dataclass(frozen=True)
class LayerRoofline:
    """Peaks of one CPU or GPU.

    Attributes:
        flops: Peak float32 FLOP/s.
        bandwidth: Memory bandwidth in bytes per second.
        faster: Speedup of the peak by dtype.
    """

    flops: float
    bandwidth: float
    faster: dict[str, float]

    def seconds(self, work: LayerWork, dtype: str) -> float:
        """Return the roofline time of a layer in seconds."""
        peak = self.flops * self.faster.get(dtype, 1.0)
        return max(work.flops / peak, work.bytes(dtype) / self.bandwidth)

    def is_compute_bound(self, work: LayerWork) -> bool:
        """Return whether the compute time of a layer in float32 is the larger one."""
        return work.flops / self.flops > work.bytes("float32") / self.bandwidth


def roofline(flags: Collection[str] | None = None, cores: int = 0) -> LayerRoofline:
    """Return the peaks of a CPU.

    Args:
        flags: CPU features in Linux's names, ``TargetSpec.cpu_flags``; None for this machine's.
        cores: Number of threads; 0 for all cores of this machine.
    """
    flags = set(host.cpu_flags() if flags is None else flags)
    cores = cores or host.usable_cores()
    lanes = 16 if "avx512f" in flags else 8 if "avx2" in flags else 4
    return LayerRoofline(
        flops=cores * HERTZ * lanes * 2 * 2,  # two FMA units, two FLOPs per FMA
        bandwidth=min(_MOST_BYTES_A_SECOND, cores * _BYTES_A_SECOND_PER_CORE),
        faster={dtype: dtypes.dtype(dtype).cpu_rate(flags) for dtype in LOW_DTYPES},
    )


def roofline_of(target: TargetSpec) -> LayerRoofline:
    """Return the peaks of a target: of its GPU, if it has one, otherwise of its CPU."""
    gpu = target.gpu
    if gpu is None:
        return roofline(target.cpu_flags, target.threads)
    plain = gpu.fma("float32")
    return LayerRoofline(
        flops=2e9 * gpu.sms * gpu.clock_ghz * plain,
        bandwidth=1e9 * gpu.dram_gbs,
        faster={dtype: gpu.fma(dtype) / plain for dtype in LOW_DTYPES},
    )


def mixed_dtypes(target: TargetSpec) -> tuple[str, ...]:
    """Return the dtypes that layers of one model may have on a target, besides float32.

    These are int8 and the fastest 16-bit float, if the target computes it faster than float32.
    Of two that are equally fast, a CPU takes bfloat16, which cannot overflow, and a GPU float16.
    """
    faster = roofline_of(target).faster
    halves = dtypes.HALF_FLOATS if target.gpu is not None else dtypes.HALF_FLOATS[::-1]
    half = max(halves, key=lambda dtype: faster[dtype])
    return ("int8", half) if faster[half] > 1 else ("int8",)


def layer_dtypes(target: TargetSpec) -> tuple[str, ...]:
    """Return the dtypes among which one is chosen for each layer on a target, besides float32.

    These are :func:`mixed_dtypes`, and float16 last where that has bfloat16 and the CPU computes or
    converts vectors of float16: a tensor that has too few significant bits in bfloat16 then need
    not be float32. Depthwise convolutions are such layers; they are bounded by memory.
    """
    mixed = mixed_dtypes(target)
    has_float16 = _CONVERTS_FLOAT16 in target.cpu_flags or roofline_of(target).faster[_FINER] > 1
    return (*mixed, _FINER) if target.gpu is None and "bfloat16" in mixed and has_float16 else mixed


def analysed_dtypes(dtype: str, target: TargetSpec) -> tuple[str, ...]:
    """Return the dtypes to analyse for a conversion to ``dtype``; all of them for float32."""
    by_dtype = {"float32": LOW_DTYPES, AUTO: layer_dtypes(target)}
    return by_dtype.get(dtype, (dtype,))


def work_of(flops: int | None, shapes: Collection[tuple[int, ...] | None]) -> LayerWork | None:
    """Return the work of a layer (shapes of operands and result); None when a shape is unknown."""
    if flops is None or any(shape is None for shape in shapes):
        return None
    return LayerWork(float(flops), float(sum(math.prod(s) for s in shapes if s is not None)))
