"""Integer depthwise convolution with dot-product instructions on CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.tile_signature import tile_signature
from tvmopt.kernels.cpu.depthwise_dot.config import NAME, DepthwiseDotConfig
from tvmopt.kernels.cpu.depthwise_dot.form import DepthwiseForm, match_depthwise
from tvmopt.kernels.cpu.depthwise_dot.schedule import emit
from tvmopt.kernels.cpu.depthwise_dot.space import depthwise_dot_hints
from tvmopt.kernels.cpu.intrinsics.tap_dots import find_tap_dot
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class DepthwiseDot(CpuFamily[DepthwiseForm, DepthwiseDotConfig]):
    """Multiplies several taps per lane: 4 with VNNI or ``sdot``, 2 with ``vpmaddwd``."""

    name = NAME
    schedule = staticmethod(emit)
    config_type = DepthwiseDotConfig
    kind = "window"

    def match(self, workload: Workload, arch: CpuArch) -> DepthwiseForm | Refusal:
        """Return the depthwise convolution, if the CPU has an instruction for it."""
        form = matched(workload, match_depthwise)
        if isinstance(form, Refusal):
            return form
        dot = find_tap_dot(arch, str(form.data.buffer.dtype))
        if dot is None:
            return Refusal("the CPU has no dot-product instruction for 8-bit taps")
        channels = form.extents[-1]
        if channels % dot.lanes:
            return Refusal(f"{channels} channels are not whole vectors of {dot.lanes}")
        return form

    def rank(self, form: DepthwiseForm, arch: CpuArch) -> Sequence[Ranked[DepthwiseDotConfig]]:
        """Return the configuration space: tiles and loop orders, with predicted cycles."""
        return depthwise_dot_hints(form, arch)

    def signature(self, form: DepthwiseForm) -> str:
        """Return a key that is equal for workloads that differ only in their epilogue."""
        return tile_signature(form)
