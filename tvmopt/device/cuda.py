"""CudaArch: descriptor of a CUDA GPU for kernels and cost models, by name or probed."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tvmopt.device import cuda_runtime, dtypes
from tvmopt.device.arch import Arch
from tvmopt.device.cuda_costs import CudaCosts
from tvmopt.device.generations import check_capability
from tvmopt.device.llvm import llvm_target
from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CudaArch(Arch):
    """Descriptor of one GPU; it needs no GPU in this machine.

    Attributes:
        name: Key in :data:`~tvmopt.device.gpus.GPUS`, e.g. ``"nvidia-h200"``.
        sm: Compute capability times ten, e.g. 90.
        sms: Number of streaming multiprocessors (SMs).
        clock_ghz: Clock under load, in GHz.
        smem_bytes: Maximum shared memory per thread block, in bytes.
        smem_sm_bytes: Shared memory per SM, in bytes.
        registers_sm: 32-bit registers per SM.
        threads_sm: Maximum resident threads per SM.
        blocks_sm: Maximum resident thread blocks per SM.
        l2_bytes: L2 cache, in bytes.
        memory_bytes: Device memory, in bytes.
        dram_gbs: Bandwidth of device memory, in GB/s.
        l2_gbs: L2 bandwidth, in GB/s.
        fp32_fma: float32 FMAs per SM and cycle.
        tensor_fma: float16 tensor-core FMAs per SM and cycle; 0 without tensor cores.
        costs: Fitted parameters of the cost models; not part of the GPU's identity.

    Raises:
        ConfigError: When there are no kernels for its compute capability.
    """

    kind = "cuda"
    layout = "NHWC"  # kernels read whole rows of channels

    name: str
    sm: int
    sms: int
    clock_ghz: float
    smem_bytes: int
    smem_sm_bytes: int
    threads_sm: int
    blocks_sm: int
    l2_bytes: int
    memory_bytes: int
    dram_gbs: float
    l2_gbs: float
    fp32_fma: int
    tensor_fma: int
    registers_sm: int = 65536
    costs: CudaCosts = dataclasses.field(default=CudaCosts(), repr=False, compare=False)

    #: Threads per warp, maximum threads per block, and maximum 32-bit registers per thread, on all
    #: supported GPUs.
    warp = 32
    threads_block = 1024
    registers_thread = 255
    #: Warp schedulers per SM.
    partitions = 4
    #: Shared-memory bandwidth per SM, in bytes per cycle; sizes of a memory sector and of a cache
    #: line, in bytes.
    smem_bandwidth = 128
    sector = 32
    line = 128
    #: Hopper: graphics processing clusters (GPCs), SMs of the largest GPC, and thread block
    #: clusters of 1, 2, ... 8 blocks that an H200 of 132 SMs holds, one block an SM. A cluster lies
    #: in one GPC, whose SMs are no multiple of every size (``cudaOccupancyMaxActiveClusters``).
    gpcs = 8
    gpc_sms = 16
    h200_clusters = (132, 66, 39, 30, 22, 17, 15, 15)

    def __post_init__(self) -> None:
        check_capability(self.sm, self.name)

    @property
    def arch(self) -> str:
        """Architecture name for TVM and nvcc, e.g. ``"sm_90a"``."""
        # From Hopper on, tensor-core instructions are architecture-specific ("a").
        return f"sm_{self.sm}{'a' if self.sm >= 90 else ''}"

    @property
    def has_wgmma(self) -> bool:
        """Whether the GPU has wgmma and TMA (Hopper)."""
        return self.sm == 90

    def resident_clusters(self, size: int) -> int:
        """Return how many clusters of ``size`` thread blocks are resident, one block an SM."""
        return max(1, self.h200_clusters[size - 1] * self.sms // self.h200_clusters[0])

    @property
    def has_async_copy(self) -> bool:
        """Whether the GPU has cp.async copies to shared memory."""
        return self.sm >= 80

    def tensor_shape(self, dtype: str) -> tuple[int, int, int] | None:
        """Return the mma.sync shape (m, n, k) for ``dtype`` inputs; None if not supported.

        ``"tf32"`` is a dtype here: float32 itself is for tensor cores none.
        """
        row = dtypes.dtype(dtype)
        if not row.tensor_core_sm or self.sm < row.tensor_core_sm:
            return None
        k_bytes = 32 if self.sm >= 80 else 16
        return 16, 8, 8 * k_bytes // row.bits

    def fma(self, dtype: str) -> float:
        """Return the peak FMAs per SM and cycle for ``dtype`` inputs."""
        if self.tensor_fma and self.tensor_shape(dtype):
            return self.tensor_fma * 2.0 / dtypes.itemsize(dtype)
        return self.fp32_fma * {"float64": 0.5, "int8": 4.0, "uint8": 4.0}.get(dtype, 1.0)

    @property
    def has_tf32(self) -> bool:
        """Whether the tensor cores multiply TF32 (Ampere and newer)."""
        return self.tensor_shape(dtypes.TF32.name) is not None

    @property
    def dram_bytes_cycle(self) -> float:
        """DRAM bandwidth of the GPU, in bytes per cycle."""
        return self.dram_gbs / self.clock_ghz

    @property
    def l2_bytes_cycle(self) -> float:
        """L2 bandwidth of the GPU, in bytes per cycle."""
        return self.l2_gbs / self.clock_ghz

    @property
    def cost_parameters(self) -> CudaCosts:
        """See :attr:`Arch.cost_parameters`."""
        return self.costs

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; ``CudaArch(**data)`` is the inverse, but for costs."""
        data = dataclasses.asdict(self)
        del data["costs"]
        return data

    def to_tvm(self, host_mcpu: str = "", host_mattr: tuple[str, ...] = ()) -> Any:
        """Return the ``tvm.target.Target`` of this GPU.

        Args:
            host_mcpu: LLVM's name of the host CPU; generic ``x86-64`` by default.
            host_mattr: Features of the host CPU, in LLVM's notation.
        """
        from tvm.target import Target

        device = {
            "kind": "cuda",
            "arch": self.arch,
            "max_threads_per_block": self.threads_block,
            "max_shared_memory_per_block": self.smem_bytes,
            "thread_warp_size": self.warp,
            "registers_per_block": self.registers_sm,
        }
        return Target(device, host=llvm_target(host_mcpu or "x86-64", host_mattr, 1))


def probe() -> CudaArch:
    """Return the descriptor of this machine's first GPU.

    For an unknown name, the descriptor is derived from the latest known GPU with the same or a
    lower compute capability.

    Raises:
        ConfigError: When there is no GPU, TVM cannot use it, or there are no kernels for it.
    """
    import tvm

    from tvmopt.device.gpus import GPUS, named_gpu

    if why := cuda_runtime.problem():
        raise ConfigError(
            f"target 'cuda' needs this machine's GPU, but {why}; to build for a GPU elsewhere name "
            f"it: {', '.join(GPUS)}"
        )
    device = tvm.runtime.cuda(0)
    known = named_gpu(device.device_name)
    sm = int(str(device.compute_version).replace(".", ""))
    check_capability(sm, str(device.device_name))
    if known is not None and known.sm == sm:
        return dataclasses.replace(known, sms=int(device.multi_processor_count))
    like = max((g for g in GPUS.values() if g.sm <= sm), key=lambda g: g.sm)
    sms = int(device.multi_processor_count)
    share = sms / like.sms
    return dataclasses.replace(
        like,
        name=re.sub(r"[^a-z0-9]+", "-", str(device.device_name).lower()).strip("-"),
        sm=sm,
        sms=sms,
        clock_ghz=float(device.max_clock_rate) / 1e6,
        l2_bytes=int(device.l2_cache_size_bytes or like.l2_bytes),
        memory_bytes=int(device.total_global_memory or like.memory_bytes),
        dram_gbs=like.dram_gbs * share,
        l2_gbs=like.l2_gbs * share,
    )
