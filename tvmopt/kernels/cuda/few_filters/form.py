"""Form of a convolution with few output channels: its blocks, axes and operands."""

from __future__ import annotations

import dataclasses

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.workload import Refusal

#: Most output channels: more fill a tile of the tensor cores.
MOST_FILTERS = 8
#: Bytes of one vector load.
VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class FewFiltersForm:
    """An NHWC convolution with few output channels.

    Attributes:
        facts: Facts of the reduction; its axes are n, y, x, filter, then window and channels.
        producer: Block that pads or computes the image; None where the image is a parameter.
        image: Index of the image among the reads of the reduction.
        window: Indices of the window's axes, in order.
        channel: Index of the channels' axis.
    """

    facts: BlockFacts
    producer: str | None
    image: int
    window: tuple[int, ...]
    channel: int

    @property
    def vector(self) -> int:
        """Channels of one vector load."""
        return VECTOR_BYTES // int(self.facts.reads[self.image].buffer.dtype.itemsize)

    @property
    def filters(self) -> int:
        """Output channels."""
        return self.facts.axes[3].extent

    def extent(self, axis: int) -> int:
        """Return the extent of an axis."""
        return self.facts.axes[axis].extent

    @property
    def column_step(self) -> int:
        """Columns of the image from one output pixel to the next: the stride."""
        read = self.facts.reads[self.image]
        column = int(read.buffer.shape[3])  # channels: NHWC
        return (read.strides[2] or 0) // column


def few_filters_form(func: tirx.PrimFunc) -> FewFiltersForm | Refusal:
    """Return the form of ``func``, or why it has none.

    The weight may have any layout. The image must be in NHWC, its channels a whole number of
    vectors of 16 bytes.
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    found = [b for b in leaf_blocks(sch) if block_facts(sch, b).reduction]
    if len(found) != 1:
        return Refusal(f"{len(found)} reductions, not one")
    return _form_of(sch, found[0])


def _form_of(sch: s_tir.Schedule, block: SBlockRV) -> FewFiltersForm | Refusal:
    facts = block_facts(sch, block)
    if len(facts.reads) != 2 or facts.stores != 1:
        return Refusal("not a product of two tensors")
    if [a.reduce for a in facts.axes[:4]] != [False] * 4 or len(facts.spatial) != 4:
        return Refusal("not an output of images, rows, columns and channels")
    if any(not a.reduce for a in facts.axes[4:]):
        return Refusal("data-parallel axes within the reduction")
    filters = facts.axes[3].extent
    if filters > MOST_FILTERS or (filters > 1 and facts.write.strides[3] != 1):
        return Refusal(f"more than {MOST_FILTERS} output channels, or not innermost")
    weights = [i for i, read in enumerate(facts.reads) if not any(read.strides[:3])]
    if len(weights) != 1:
        return Refusal("not one operand that all pixels share")
    image = 1 - weights[0]
    read = facts.reads[image]
    if read.strides[3] != 0 or None in read.strides or len(read.buffer.shape) != 4:
        return Refusal("not one operand that all output channels share")
    reduced = facts.reduction
    channels = [i for i in reduced if read.strides[i] == 1 and facts.axes[i].extent > 1]
    size = int(read.buffer.dtype.itemsize)
    if len(channels) != 1 or facts.axes[channels[0]].extent * size % VECTOR_BYTES:
        return Refusal(f"channels are not whole vectors of {VECTOR_BYTES} bytes")
    if int(read.buffer.shape[3]) != facts.axes[channels[0]].extent or read.strides[2] == 0:
        return Refusal("not an image in NHWC")
    before = [p for p in sch.get_producers(block) if _writes(sch, p, read.buffer)]
    producer = str(sch.get(before[0]).name_hint) if before else None
    window = tuple(i for i in reduced if i != channels[0])
    return FewFiltersForm(facts, producer, image, window, channels[0])


def _writes(sch: s_tir.Schedule, block: SBlockRV, buffer: tirx.Buffer) -> bool:
    return bool(block_facts(sch, block).write.buffer.same_as(buffer))
