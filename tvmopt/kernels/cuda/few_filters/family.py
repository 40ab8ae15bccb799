"""Kernel family: a convolution with few output channels, too few for a tile of tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import analysed
from tvmopt.kernels.cuda.few_filters.config import FewFiltersConfig
from tvmopt.kernels.cuda.few_filters.form import FewFiltersForm, few_filters_form
from tvmopt.kernels.cuda.few_filters.schedule import emit_few_filters
from tvmopt.kernels.cuda.few_filters.space import FEW_FILTERS_NAME, few_filters_hints
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class FewFilters(Family[FewFiltersForm, FewFiltersConfig]):
    """One thread computes all output channels of some pixels; the weight is in shared memory."""

    name = FEW_FILTERS_NAME
    config_type = FewFiltersConfig
    kind = "convolution"
    share = 3

    def match(self, workload: Workload, arch: CudaArch) -> FewFiltersForm | Refusal:
        """Return the form of the convolution."""
        return analysed(workload, few_filters_form)

    def rank(self, form: FewFiltersForm, arch: CudaArch) -> Sequence[Ranked[FewFiltersConfig]]:
        """Return the configurations, fastest predicted first."""
        return few_filters_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: FewFiltersConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit_few_filters(func, hint)
