"""Normalised form of a contraction (GEMM, convolution): anchor, operands, epilogue, producers."""

from __future__ import annotations

import dataclasses

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import Access, BlockFacts, block_facts, constant_run
from tvmopt.kernels.cpu.common.nest import (
    TiledForm,
    find_epilogue,
    is_constant,
    only_reduction,
)
from tvmopt.kernels.cpu.common.stage import (
    collapse_axes,
    collapse_map,
    contiguous_tail,
    divisors,
)
from tvmopt.kernels.cpu.intrinsics import (
    DotIntrinsic,
    TileIntrinsic,
    find_dot,
    find_tile,
    largest_step,
)
from tvmopt.kernels.cpu.intrinsics.tile import MOST_BYTES
from tvmopt.kernels.exact_pairs import has_exact_pairs
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass(frozen=True)
class ContractionForm(TiledForm):
    """A contraction, normalised for tiling; row axes are collapsed where possible.

    Attributes:
        weight: Access of the vector operand (B of a GEMM).
        data: Access of the broadcast operand (A of a GEMM).
        constant: Whether the weight is a parameter that does not change between calls.
        run: Maximum tile width: steps of the vectorised axis that use the same data element.
        exact_pairs: Whether pairs of products never saturate in int16, see
            :mod:`tvmopt.kernels.exact_pairs`.
    """

    weight: Access
    data: Access
    constant: bool
    run: int
    exact_pairs: bool = False

    def dot(self, arch: CpuArch) -> DotIntrinsic | None:
        """Return the dot-product instruction of ``arch`` for the operands; None if there is none.

        The instruction needs a reduction axis of unit stride in the data, K divisible by its depth,
        and the data as its first operand.
        """
        types = str(self.data.buffer.dtype), str(self.weight.buffer.dtype)
        found = find_dot(arch, *types, exact_pairs=self.exact_pairs)
        if found is None or self.contiguous < 0 or not self.data_first:
            return None
        whole = self.facts.axes[self.contiguous].extent % found.depth == 0
        steps = self.facts.reduced > found.depth  # TVM treats a loop of extent 1 as no reduction
        return found if whole and steps and self.facts.dtype == found.accumulator else None

    def widens(self, arch: CpuArch) -> bool:
        """Return whether vector FMAs of ``arch`` compute on bfloat16 widened to float32.

        False where the cost of widening is unknown: on other CPUs than x86.
        """
        types = {str(self.data.buffer.dtype), str(self.weight.buffer.dtype)}
        return types == {"bfloat16"} and arch.isa == "x86_64" and self.dot(arch) is None

    def tile(self, arch: CpuArch) -> TileIntrinsic | None:
        """Return the matrix-tile intrinsic of ``arch`` for the operands; None if there is none."""
        itemsize = self.data.buffer.dtype.itemsize
        found = find_tile(arch, str(self.data.buffer.dtype), str(self.weight.buffer.dtype))
        if found is None or self.contiguous < 0 or self.facts.dtype != found.accumulator:
            return None
        if not self.data_first:
            return None
        nbytes = self.facts.axes[self.contiguous].extent * itemsize
        step = largest_step(nbytes)
        whole = self.run == self.facts.axes[self.vector].extent  # no grouped convolution
        if step is None or not whole:
            return None
        taps = self._taps(MOST_BYTES // nbytes)
        return dataclasses.replace(found, kbytes=step * max(1, taps), taps=taps)

    def depth(self, arch: CpuArch) -> int:
        """Return the K granularity of the dot-product instruction on ``arch``; 1 without one."""
        dot = self.dot(arch)
        return dot.depth if dot else 1

    def steps(self, arch: CpuArch) -> int:
        """Return the iterations of the innermost reduction loop, in dot-product groups."""
        last = self.facts.reduction[-1]
        grouped = self.depth(arch) if self.contiguous == last else 1
        return self.facts.axes[last].extent // grouped

    @property
    def taps_axis(self) -> int:
        """Index of the kernel's width, whose columns follow each other in the data; -1 if none."""
        axes, channels = self.facts.axes, self.facts.axes[self.contiguous].extent
        found = [i for i in self.facts.reduction if self.data.strides[i] == channels]
        return next((i for i in found if axes[i].extent > 1), -1)

    def _taps(self, most: int) -> int:
        """Return the most columns of the kernel, up to ``most``, that divide its width; 0 if 1."""
        if self.taps_axis < 0 or most < 2:
            return 0
        taps = divisors(self.facts.axes[self.taps_axis].extent, most)[-1]
        return taps if taps > 1 else 0

    @property
    def data_first(self) -> bool:
        """Whether the data is the first factor, as in the tensor intrinsics' definitions."""
        return self.facts.reads[0].buffer.same_as(self.data.buffer)

    @property
    def contiguous(self) -> int:
        """Index of the reduction axis with unit stride in the data; -1 if there is none."""
        axes = self.facts.axes
        found = [i for i in self.facts.reduction if self.data.strides[i] == 1]
        return next((i for i in found if axes[i].extent > 1), -1)

    @property
    def vector(self) -> int:
        """Index of the vectorised axis."""
        return self.facts.spatial[-1]

    @property
    def rows(self) -> list[int]:
        """Data-parallel axes with weight stride 0 (M of a GEMM, pixels of a convolution)."""
        return [i for i in self.facts.spatial if self.weight.strides[i] == 0]

    @property
    def columns(self) -> list[int]:
        """Data-parallel axes with data stride 0 (N of a GEMM); the vectorised one is the last."""
        return [
            i
            for i in self.facts.spatial
            if self.weight.strides[i] != 0 and (self.data.strides[i] == 0 or i == self.vector)
        ]


def match_contraction(func: tirx.PrimFunc, collapse: bool = True) -> ContractionForm | Refusal:
    """Normalise ``func`` as a single contraction that can be tiled.

    Args:
        func: A TensorIR function after FuseTIR.
        collapse: Whether to collapse row axes that are contiguous in memory.
    """
    found = only_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor = found
    operands = _operands(block_facts(sch, anchor))
    if isinstance(operands, Refusal):
        return operands
    epilogue = find_epilogue(sch, anchor)
    if collapse:
        _collapse_rows(sch, anchor, epilogue)
    return contraction_form(func, sch, anchor, epilogue)


def contraction_form(
    func: tirx.PrimFunc, sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV
) -> ContractionForm | Refusal:
    """Return the form of a schedule of ``func``, whose blocks are inlined and collapsed."""
    facts = block_facts(sch, anchor)
    operands = _operands(facts)
    if isinstance(operands, Refusal):
        return operands
    weight, data = operands
    vector = facts.axes[facts.spatial[-1]]
    run = vector.extent if data.strides[facts.spatial[-1]] == 0 else constant_run(data, vector)
    if run == 1:
        return Refusal("no two neighbouring outputs share an element of the data")
    return ContractionForm(
        sch=sch,
        anchor=anchor,
        epilogue=epilogue,
        facts=facts,
        weight=weight,
        data=data,
        constant=is_constant(func, sch, weight),
        producers=tuple(sch.get(b).name_hint for b in sch.get_producers(anchor)),
        run=run,
        exact_pairs=has_exact_pairs(func),
    )


def _operands(facts: BlockFacts) -> tuple[Access, Access] | Refusal:
    """Return (weight, data), the operands with and without the last output axis."""
    if len(facts.reads) != 2 or any(facts.conditional) or not facts.spatial:
        return Refusal("its reduction is not one of two operands without conditions")
    vector = facts.spatial[-1]
    if facts.axes[vector].extent == 1 or facts.write.strides[vector] != 1:
        return Refusal("its last output axis is no contiguous vector")
    reads = sorted(facts.reads, key=lambda r: r.strides[vector] in (0, None))
    weight, data = reads
    if weight.buffer.same_as(data.buffer) or None in weight.strides:
        return Refusal("its weight has no constant strides, or is the data itself")
    # Stride None: a grouped convolution reads group o // outputs, constant in a narrow enough tile.
    if data.strides[vector] not in (0, None):
        return Refusal("both operands have the last output axis")
    return weight, data


def _collapse_rows(sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV) -> None:
    """Collapse adjacent row axes where memory is contiguous: y and x of a 1 x 1 convolution."""
    facts = block_facts(sch, anchor)
    operands = _operands(facts)
    assert not isinstance(operands, Refusal)
    rows = [i for i in facts.spatial if operands[0].strides[i] == 0]
    # Only the innermost run of adjacent axes.
    run = [i for i in rows if set(range(i, rows[-1] + 1)) <= set(rows)]
    tail = contiguous_tail(facts, run)
    if tail is None or len(tail.axes) < 2:
        return
    index_map = collapse_map(facts, tail.axes, len(facts.spatial))
    sch.transform_layout(anchor, ("write", 0), index_map)
    collapse_axes(sch, epilogue, tail.axes)
    collapse_axes(sch, anchor, tail.axes)
