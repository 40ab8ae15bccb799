"""Table of GPUs: figures from data sheets; L2 bandwidth is measured or estimated."""

from __future__ import annotations

import itertools
import re
from typing import Any

from tvmopt.device.cuda import CudaArch
from tvmopt.device.generations import check_capability

_GIB = 1024**3
_MIB = 1024**2
_KIB = 1024


def _gpu(
    name: str,
    sm: int,
    sms: int,
    clock_ghz: float,
    l2_mib: float,
    memory_gib: int,
    dram_gbs: float,
    l2_gbs: float,
    tensor_fma: int,
) -> CudaArch:
    smem_sm, threads, blocks, fma = _BY_SM[sm]
    return CudaArch(
        name=name,
        sm=sm,
        sms=sms,
        clock_ghz=clock_ghz,
        # From compute capability 8.0 on, the driver reserves 1 KiB of shared memory per block.
        smem_bytes=(smem_sm - (1 if sm >= 80 else 0)) * _KIB if sm != 70 else 96 * _KIB,
        smem_sm_bytes=smem_sm * _KIB,
        threads_sm=threads,
        blocks_sm=blocks,
        l2_bytes=int(l2_mib * _MIB),
        memory_bytes=memory_gib * _GIB,
        dram_gbs=dram_gbs,
        l2_gbs=l2_gbs,
        fp32_fma=fma,
        tensor_fma=tensor_fma,
    )


# Per SM, by compute capability: shared memory in KiB, threads, blocks, float32 FMAs per cycle.
_BY_SM = {
    70: (96, 2048, 32, 64),
    75: (64, 1024, 16, 64),
    80: (164, 2048, 32, 64),
    86: (100, 1536, 16, 128),
    89: (100, 1536, 24, 128),
    90: (228, 2048, 32, 128),
}

_ALL = (
    _gpu("nvidia-v100", 70, 80, 1.53, 6, 16, 900, 2500, 512),
    _gpu("nvidia-t4", 75, 40, 1.35, 4, 16, 320, 1200, 512),
    _gpu("nvidia-a100", 80, 108, 1.41, 40, 80, 2039, 4800, 1024),
    _gpu("nvidia-a100-40gb", 80, 108, 1.41, 40, 40, 1555, 4800, 1024),
    _gpu("nvidia-a30", 80, 56, 1.44, 24, 24, 933, 2400, 1024),
    _gpu("nvidia-a10", 86, 72, 1.7, 6, 24, 600, 2200, 512),
    _gpu("nvidia-a40", 86, 84, 1.74, 6, 48, 696, 2500, 512),
    _gpu("nvidia-rtx-3090", 86, 82, 1.7, 6, 24, 936, 2500, 256),
    _gpu("nvidia-l4", 89, 58, 2.04, 48, 24, 300, 2000, 512),
    _gpu("nvidia-l40s", 89, 142, 2.52, 96, 48, 864, 5000, 512),
    _gpu("nvidia-rtx-4090", 89, 128, 2.52, 72, 24, 1008, 5000, 256),
    _gpu("nvidia-h100", 90, 132, 1.755, 50, 80, 3350, 5700, 2048),
    _gpu("nvidia-h100-pcie", 90, 114, 1.62, 50, 80, 2039, 4600, 2048),
    _gpu("nvidia-h200", 90, 132, 1.755, 60, 141, 4800, 5700, 2048),
)

# Words of a driver's device name that are optional in a match.
_EXTRAS = tuple(rf"-{word}(?=-|$)" for word in (r"sxm\d?", r"hbm\d\w?", "nvl", "pcie", r"\d+gb"))

#: All known GPUs by name.
GPUS: dict[str, CudaArch] = {gpu.name: gpu for gpu in _ALL}
#: GPU that :class:`~tvmopt.device.cuda_costs.CudaCosts` is fitted to.
FITTED = "nvidia-h200"
#: Tag with :func:`constants_words` of a target.
CONSTANTS_TAG = "tvmopt.gpu_constants"


def constants_words(gpu: CudaArch) -> str:
    """Return where the figures and cost-model parameters of a GPU come from."""
    if gpu.name == FITTED:
        return f"fitted to sweeps of {FITTED}"
    figures = "from its data sheet"
    if gpu.name not in GPUS:
        figures = f"of another GPU of compute capability up to {gpu.sm // 10}.{gpu.sm % 10}, scaled"
    return f"figures {figures}; cost-model parameters fitted to {FITTED}, not to {gpu.name}"


def named_gpu(text: str) -> CudaArch | None:
    """Return the GPU with the name ``text``: a key of :data:`GPUS`, or a driver's device name.

    ``"h200"``, ``"nvidia/nvidia-h200"`` and ``"NVIDIA H200"`` name the same GPU. Returns None for
    an unknown name.
    """
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    words = re.sub(r"^(nvidia-)+", "", words)
    words = re.sub(r"^(tesla|geforce)-", "", words)
    # A driver's name includes socket and memory ("NVIDIA A100-SXM4-80GB"): drop as few of these
    # words as possible.
    for count in range(len(_EXTRAS) + 1):
        for left_out in itertools.combinations(_EXTRAS, count):
            name = "nvidia-" + re.sub("|".join(left_out) or "$", "", words)
            if name in GPUS:
                return GPUS[name]
    return None


def gpu_of_target(target: Any) -> CudaArch:
    """Return a known GPU with the compute capability of a ``tvm.target.Target``.

    The target tells no more than that. Among several GPUs, the one with the fastest memory is
    returned; for an unknown capability, a GPU of the last generation before it; without one, of the
    first. GPUs of a generation differ in the number of SMs, but hardly in FLOPs per byte.

    Raises:
        ConfigError: When the target is for a GPU newer than Hopper, or older than Volta.
    """
    digits = re.sub(r"[^0-9]", "", str(target.attrs.get("arch", "")))
    if digits:
        check_capability(int(digits), f"target {target.attrs['arch']}")
    known = sorted({gpu.sm for gpu in _ALL})
    sm = max((s for s in known if digits and s <= int(digits)), default=known[0])
    return max((gpu for gpu in _ALL if gpu.sm == sm), key=lambda gpu: gpu.dram_gbs)
