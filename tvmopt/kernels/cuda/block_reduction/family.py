"""Kernel family: few long reductions, one or several thread blocks each."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.block_reduction.config import BlockReductionConfig
from tvmopt.kernels.cuda.block_reduction.schedule import NAME, emit
from tvmopt.kernels.cuda.block_reduction.space import block_reduction_hints
from tvmopt.kernels.cuda.common.inlining import inlined
from tvmopt.kernels.cuda.common.memory_bound import GEMV, MemoryBound, analysed
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Inlined, Refusal, Workload


class BlockReduction(MemoryBound[Inlined, BlockReductionConfig]):
    """Threads of a block share a reduction; so do several blocks with split-K."""

    name = NAME
    config_type = BlockReductionConfig
    kind = "block reduction"

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether the workload is no GEMV, which has its own families."""
        return super().wanted(workload, found) and not any(f.family.kind == GEMV for f in found)

    def match(self, workload: Workload, arch: CudaArch) -> Inlined | Refusal:
        """Return the inlined function."""
        return analysed(workload, inlined)

    def rank(self, form: Inlined, arch: CudaArch) -> Sequence[Ranked[BlockReductionConfig]]:
        """Return the configurations, fastest predicted first; none for many or short reductions."""
        return block_reduction_hints(form.sch, arch)

    def emit(self, func: tirx.PrimFunc, hint: BlockReductionConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernels of ``func``."""
        return emit(func, hint)
