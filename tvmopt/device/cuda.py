"""What a CUDA GPU can do: the facts a kernel is chosen from, by name or probed."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tvmopt.device import cuda_runtime, dtypes
from tvmopt.device.llvm import llvm_target
from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class CudaArch:
    """Descriptor of one GPU, constructible where there is none.

    Attributes:
        name: What :data:`~tvmopt.device.gpus.GPUS` calls it, e.g. ``"nvidia-h200"``.
        sm: Compute capability times ten, e.g. 90.
        sms: Streaming multiprocessors.
        clock_ghz: Clock under load, in GHz.
        smem_bytes: Shared memory that one thread block may ask for, in bytes.
        smem_sm_bytes: Shared memory of one multiprocessor, in bytes.
        registers_sm: 32-bit registers of one multiprocessor.
        threads_sm: Threads that one multiprocessor holds.
        blocks_sm: Thread blocks that one multiprocessor holds.
        l2_bytes: L2 cache, in bytes.
        memory_bytes: Device memory, in bytes.
        dram_gbs: Bandwidth of device memory, in GB/s.
        l2_gbs: Bandwidth from L2, in GB/s.
        fp32_fma: Multiply-adds of float32 that one multiprocessor does a cycle.
        tensor_fma: Multiply-adds of float16 that its tensor cores do a cycle; 0 without any.
    """

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

    #: Threads of a warp, and the most of a block, on every GPU that this describes.
    warp = 32
    threads_block = 1024
    #: Warp schedulers of a multiprocessor.
    partitions = 4
    #: Bytes that shared memory moves a cycle, and those of one sector of device memory.
    smem_bandwidth = 128
    sector = 32

    @property
    def arch(self) -> str:
        """TVM's and nvcc's name of the instruction set, e.g. ``"sm_90a"``."""
        # From Hopper on, the tensor cores' own instructions belong to one chip alone.
        return f"sm_{self.sm}{'a' if self.sm >= 90 else ''}"

    @property
    def has_wgmma(self) -> bool:
        """Whether warpgroups multiply straight from shared memory, fed by the copy engine."""
        return self.sm == 90

    @property
    def has_async_copy(self) -> bool:
        """Whether threads copy to shared memory without waiting (cp.async)."""
        return self.sm >= 80

    def tensor_shape(self, dtype: str) -> tuple[int, int, int] | None:
        """Rows, columns and depth of the warp's tensor instruction for ``dtype`` inputs.

        None where the tensor cores do not take that type.
        """
        row = dtypes.dtype(dtype)
        if not row.tensor_core_sm or self.sm < row.tensor_core_sm:
            return None
        k_bytes = 32 if self.sm >= 80 else 16
        return 16, 8, 8 * k_bytes // row.bits

    def fma(self, dtype: str) -> float:
        """Multiply-adds that one multiprocessor does a cycle on ``dtype`` inputs, at its best."""
        if self.tensor_fma and self.tensor_shape(dtype):
            return self.tensor_fma * 2.0 / dtypes.itemsize(dtype)
        return self.fp32_fma * {"float64": 0.5, "int8": 4.0, "uint8": 4.0}.get(dtype, 1.0)

    @property
    def dram_bytes_cycle(self) -> float:
        """Bytes a cycle from device memory, of all multiprocessors together."""
        return self.dram_gbs / self.clock_ghz

    @property
    def l2_bytes_cycle(self) -> float:
        """Bytes a cycle from L2, of all multiprocessors together."""
        return self.l2_gbs / self.clock_ghz

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``CudaArch(**data)`` reverses it."""
        return dataclasses.asdict(self)

    def to_tvm(self, host_mcpu: str = "", host_mattr: tuple[str, ...] = ()) -> Any:
        """The ``tvm.target.Target`` that compiles for this GPU.

        Args:
            host_mcpu: LLVM's name of the CPU that launches; that of any such CPU by default.
            host_mattr: Features of it.
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
    """The first GPU of this machine, by its name where that is known.

    Raises:
        ConfigError: When there is none, or TVM cannot use it.
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
    if known is not None and known.sm == sm:
        return dataclasses.replace(known, sms=int(device.multi_processor_count))
    like = max((g for g in GPUS.values() if g.sm <= sm), key=lambda g: g.sm, default=None)
    if like is None:
        raise ConfigError(
            f"a GPU must be of compute capability 7.0 or later, but {device.device_name} is of "
            f"{device.compute_version}"
        )
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
