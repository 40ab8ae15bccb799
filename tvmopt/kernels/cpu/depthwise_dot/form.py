"""Match depthwise convolutions of int8 weights: their window, strides and packed weight."""

from __future__ import annotations

import dataclasses

from tvm import tirx

from tvmopt.device.dtypes import BYTE_INTEGERS
from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.nest import (
    TiledForm,
    find_epilogue,
    is_constant,
    reduction_read_once,
)
from tvmopt.kernels.workload import Refusal

# Longest and widest window, in taps.
MOST_TAPS = 7


@dataclasses.dataclass(frozen=True)
class DepthwiseForm(TiledForm):
    """A depthwise convolution, NHWC, with axes (n, y, x, c) and (ky, kx).

    Attributes:
        data: The read of the data, uint8 or int8.
        weight: The read of the constant int8 weight.
        kernel: Height and width of the window.
        stride: Strides along height and width.
    """

    data: Access
    weight: Access
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def signed(self) -> bool:
        """Whether the data is int8."""
        return str(self.data.buffer.dtype) == "int8"


def match_depthwise(func: tirx.PrimFunc) -> DepthwiseForm | Refusal:
    """Normalise ``func`` as a depthwise convolution of 8-bit data and a constant int8 weight."""
    found = reduction_read_once(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor, facts = found
    reads = {str(read.buffer.dtype): read for read in facts.reads}
    operands = _operands(facts)
    if operands is None or str(facts.write.buffer.dtype) != "int32":
        return Refusal(f"it is not a depthwise convolution of 8-bit operands but of {list(reads)}")
    data, weight = operands
    if not is_constant(func, sch, weight):
        return Refusal("its weight is not constant")
    window = _window(facts, data, weight)
    if isinstance(window, Refusal):
        return window
    kernel, stride = window
    epilogue = find_epilogue(sch, anchor)
    producers = tuple(sch.get(b).name_hint for b in sch.get_producers(anchor))
    facts = block_facts(sch, anchor)
    return DepthwiseForm(sch, anchor, epilogue, facts, producers, data, weight, kernel, stride)


def _operands(facts: BlockFacts) -> tuple[Access, Access] | None:
    """Return data and weight of a reduction over two axes that shares its channels; or None."""
    if len(facts.reads) != 2 or len(facts.spatial) != 4 or len(facts.reduction) != 2:
        return None
    if any(facts.conditional) or facts.calls or facts.divides or facts.stores != 1:
        return None
    data, weight = facts.reads
    rows = facts.spatial[:-1]
    if any(weight.strides[i] != 0 for i in rows):
        data, weight = weight, data
    channels = facts.spatial[-1]
    if any(weight.strides[i] != 0 for i in rows) or len(data.buffer.shape) != 4:
        return None
    if str(weight.buffer.dtype) != "int8" or str(data.buffer.dtype) not in BYTE_INTEGERS:
        return None
    return (data, weight) if data.strides[channels] == weight.strides[channels] == 1 else None


def _window(
    facts: BlockFacts, data: Access, weight: Access
) -> tuple[tuple[int, int], tuple[int, int]] | Refusal:
    """Return kernel and strides along height and width."""
    *_, width, channels = (int(extent) for extent in data.buffer.shape)
    kernel, strides = [], []
    for i, k, pitch in zip(
        facts.spatial[1:3], facts.reduction, (width * channels, channels), strict=True
    ):
        taps, step = facts.axes[k].extent, data.strides[i] or pitch
        kernel.append(taps)
        strides.append(step // pitch)
        if taps > MOST_TAPS:
            return Refusal(f"its window has {taps} taps along an axis, more than {MOST_TAPS}")
        if taps > 1 and data.strides[k] != pitch:
            return Refusal("its window is dilated")
        if step % pitch or step not in (pitch, 2 * pitch):
            return Refusal("its stride is not 1 or 2")
    if weight.strides[facts.reduction[1]] != facts.axes[facts.spatial[-1]].extent and kernel[1] > 1:
        return Refusal("its weight is not laid out as height, width, channels")
    return (kernel[0], kernel[1]), (strides[0], strides[1])
