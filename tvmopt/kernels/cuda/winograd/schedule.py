"""Winograd input and output transforms: a thread holds a few tiles of a few channels in registers.

The input transform runs before the batched GEMM, the output transform after it (see
``transform/winograd_gpu.py``). Both are memory-bound: a thread loads all that its tiles need with
vectors along the channels, coalesced, and stores each result at once. All loops of a thread are
unrolled, so that zeros of the transform matrices cost nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cuda.common.inlining import inline_all
from tvmopt.kernels.cuda.common.loops import fuse_all, split_threads
from tvmopt.kernels.cuda.common.vectors import (
    cache_reads,
    cache_result,
    load_at,
    moves_by_vectors,
    store_at,
)
from tvmopt.kernels.cuda.winograd.config import WinogradTransformConfig
from tvmopt.kernels.schedulable import why_not_schedulable
from tvmopt.kernels.workload import Refusal

#: Annotations of the blocks with the transformed input and the output tiles; the value is the
#: tile size m.
WINOGRAD_DATA = "tvmopt.winograd_data"
WINOGRAD_OUT = "tvmopt.winograd_out"
# Vector of a thread, and warps of a block, of the weight transform.
_WEIGHT_VECTOR, _WEIGHT_WARPS = 4, 4


@dataclasses.dataclass(frozen=True)
class TransformForm:
    """An analysed Winograd transform, F(m x m, 3 x 3).

    Attributes:
        sch: Its schedule; the axes of all blocks end with image, y, x, channel.
        m: Tile size: m x m outputs.
        padded: Block that reads the zero-padded input; None in an output transform.
        half: First half of the transform, along the columns.
        whole: Second half, along the rows.
        last: Block that writes the output: ``whole`` itself, or its epilogue.
        grid: Images, tiles along y, tiles along x.
        channels: Channels of the input, or of the output.
    """

    sch: s_tir.Schedule
    m: int
    padded: SBlockRV | None
    half: SBlockRV
    whole: SBlockRV
    last: SBlockRV
    grid: tuple[int, int, int]
    channels: int

    def why_not(self, config: WinogradTransformConfig) -> Refusal | None:
        """Return why vectors and tiles of ``config`` do not fit; None where they do."""
        if min(config.vector_elements, config.tiles_per_thread, config.threads) < 1:
            return Refusal("vectors, tiles and threads must be at least 1")
        if self.channels % config.vector_elements:
            return Refusal(f"vectors must divide {self.channels} channels")
        if self.grid[2] % config.tiles_per_thread:
            return Refusal(f"tiles of a thread must divide {self.grid[2]} tiles")
        return None


def prepare_data(func: tirx.PrimFunc) -> TransformForm | Refusal:
    """Analyse an input transform."""
    found = _marked(func, WINOGRAD_DATA)
    if isinstance(found, Refusal):
        return found
    sch, whole, m = found
    [half] = sch.get_producers(whole)
    [padded] = sch.get_producers(half)
    _, _, images, tiles_y, tiles_x, channels = _shape(sch, half)
    [flat] = sch.get_consumers(whole)
    sch.reverse_compute_inline(flat)
    grid = (images, tiles_y, tiles_x)
    return TransformForm(sch, m, padded, half, whole, whole, grid, channels)


def prepare_out(func: tirx.PrimFunc) -> TransformForm | Refusal:
    """Analyse an output transform, whose epilogue must not rearrange the output."""
    found = _marked(func, WINOGRAD_OUT)
    if isinstance(found, Refusal):
        return found
    sch, whole, m = found
    if len(sch.get_output_blocks("root")) != 1:
        return Refusal("it has several outputs")
    [half] = sch.get_producers(whole)
    inline_all(sch, kept=[sch.get(block).name_hint for block in (half, whole)])
    ends = sch.get_consumers(whole)
    if len(ends) != 1 or len(leaf_blocks(sch)) != 3:
        return Refusal("its epilogue is not one block")
    _, _, images, tiles_y, tiles_x, channels = _shape(sch, whole)
    extents = [axis.extent for axis in block_facts(sch, ends[0]).axes]
    if len(extents) != 4 or (extents[0], extents[3]) != (images, channels):
        return Refusal("its epilogue rearranges the output")
    if (math.ceil(extents[1] / m), math.ceil(extents[2] / m)) != (tiles_y, tiles_x):
        return Refusal("its epilogue has another size than its tiles")
    grid = (images, tiles_y, tiles_x)
    return TransformForm(sch, m, None, half, whole, ends[0], grid, channels)


DATA_NAME = "gpu_winograd_data"


def emit_data(func: tirx.PrimFunc, config: WinogradTransformConfig) -> s_tir.Schedule | Refusal:
    """Schedule the input transform ``func``.

    Before -> after, for one tile of 2 x 2 a thread and vectors of 4 channels::

        for b, y, x, c: P[b, y, x, c] = X[b, y - 1, x - 1, c] if inside else 0
        for i, j, b, y, x, c: H[i, j, b, y, x, c] = (bt P)[i, j]
        for i, j, b, y, x, c: T[i, j, b, y, x, c] = (H bt.T)[i, j]
        for p, t, c: V[p, t, c] = T[p // 4, p % 4, t // tiles, t // wide % high, t % wide, c]

        for block in blockIdx.x, t in threadIdx.x:
            for y, x in unrolled(4, 4): P_local[y, x, 0:4] = X[...] if inside else 0
            for i, j in unrolled(4, 4): for c in unrolled(4): H_local[i, j, c] = ...
            for i, j in unrolled(4, 4):
                for c in unrolled(4): V_local[c] = ...
                V[i * 4 + j, t, 0:4] = V_local[0:4]
    """
    form = prepare_data(func)
    if isinstance(form, Refusal):
        return form
    if (refusal := form.why_not(config)) is not None:
        return refusal
    assert form.padded is not None
    sch, vector = form.sch, config.vector_elements
    store = sch.cache_write(form.whole, 0, "local")
    i, j, b, y, x, c = sch.get_loops(form.whole)
    x, tile = sch.split(x, [None, config.tiles_per_thread])
    c, lane = sch.split(c, [None, vector])
    sch.reorder(b, y, x, c, tile, i, j, lane)
    thread = _bind(sch, [b, y, x, c], config.threads)
    for block, loop in ((form.half, tile), (form.padded, thread)):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, loop, preserve_unit_loops=True)
    sch.reverse_compute_at(store, j, preserve_unit_loops=True)
    _straight(sch, sch.get_loops(form.padded)[2:], vector)
    _straight(sch, sch.get_loops(form.half)[3:])
    _straight(sch, sch.get_loops(store)[5:], vector)
    _straight(sch, [tile, i, j, lane])
    return sch


OUT_NAME = "gpu_winograd_out"


def emit_out(func: tirx.PrimFunc, config: WinogradTransformConfig) -> s_tir.Schedule | Refusal:
    """Schedule the output transform ``func`` and its epilogue.

    Before -> after, for tiles of 2 x 2 and a bias::

        for i, j, b, y, x, o: H[i, j, b, y, x, o] = (at M[:, t, o])[i, j]
        for i, j, b, y, x, o: T[i, j, b, y, x, o] = (H at.T)[i, j]
        for b, y, x, o: Y[b, y, x, o] = relu(T[y % 2, x % 2, b, y // 2, x // 2, o] + B[o])

        for block in blockIdx.x, t in threadIdx.x:
            for p in unrolled(16): M_local[p, 0:4] = M[p, t, o:o + 4]
            for i, j in unrolled(2, 4): for c in unrolled(4): H_local[i, j, c] = ...
            for i, j in unrolled(2, 2): for c in unrolled(4): T_local[i, j, c] = ...
            for y, x in unrolled(2, 2):
                if inside:
                    B_local[0:4] = B[o:o + 4]
                    for c in unrolled(4): Y_local[c] = relu(T_local[y, x, c] + B_local[c])
                    Y[...] = Y_local[0:4]
    """
    form = prepare_out(func)
    if isinstance(form, Refusal):
        return form
    if (refusal := form.why_not(config)) is not None:
        return refusal
    sch, vector = form.sch, config.vector_elements
    for block in (form.half, form.whole):
        sch.set_scope(block, 0, "local")
    gemm_output = sch.cache_read(form.half, 0, "local")
    facts = block_facts(sch, form.last)
    wide = moves_by_vectors(facts, facts.write, 3, vector)
    loads = cache_reads(sch, form.last, 3, vector) if wide else []
    store = cache_result(sch, form.last, vector) if wide else None
    b, y, x, c = sch.get_loops(form.last)
    y, row = sch.split(y, [None, form.m])
    x, tile, column = sch.split(x, [None, config.tiles_per_thread, form.m])
    c, lane = sch.split(c, [None, vector])
    sch.reorder(b, y, x, c, tile, row, column, lane)
    thread = _bind(sch, [b, y, x, c], config.threads)
    sch.compute_at(form.whole, tile, preserve_unit_loops=True)
    sch.compute_at(form.half, tile, preserve_unit_loops=True)
    sch.compute_at(gemm_output, thread, preserve_unit_loops=True)
    _straight(sch, sch.get_loops(form.whole)[3:])
    _straight(sch, sch.get_loops(form.half)[3:])
    _straight(sch, sch.get_loops(gemm_output)[2:], vector)
    load_at(sch, loads, column)
    if store is not None:
        store_at(sch, store, column)
    _straight(sch, [tile, row, column, lane])
    return sch


def emit_weight(func: tirx.PrimFunc, arch: CudaArch) -> s_tir.Schedule:
    """Schedule the weight transform ``func``: a thread transforms a vector of outputs.

    Before -> after, for tiles of 2 x 2 and vectors of 4 outputs::

        for i, j, c, o: H[i, j, c, o] = (g W)[i, j]
        for i, j, c, o: T[i, j, c, o] = (H g.T)[i, j]
        for p, c, o: U[p, c, o] = T[p // 4, p % 4, c, o]

        for block in blockIdx.x, t in threadIdx.x:
            for i, j in unrolled(3, 3): W_local[i, j, 0:4] = W[i, j, c, o:o + 4]
            for i, j in unrolled(4, 3): for o in unrolled(4): H_local[i, j, o] = ...
            for i, j in unrolled(4, 4):
                for o in unrolled(4): U_local[o] = ...
                U[i * 4 + j, c, o:o + 4] = U_local[0:4]
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    half, whole = sch.get_sblock("winograd_weight_rows"), sch.get_sblock("winograd_weight")
    [flat] = sch.get_consumers(whole)
    sch.reverse_compute_inline(flat)
    store, load = sch.cache_write(whole, 0, "local"), sch.cache_read(half, 0, "local")
    i, j, c, o = sch.get_loops(whole)
    outputs = int(sch.get(o).extent)
    vector = math.gcd(outputs, _WEIGHT_VECTOR)
    o, lane = sch.split(o, [None, vector])
    sch.reorder(c, o, i, j, lane)
    thread = _bind(sch, [c, o], _WEIGHT_WARPS * arch.warp)
    sch.set_scope(half, 0, "local")
    for block in (half, load):
        sch.compute_at(block, thread, preserve_unit_loops=True)
    sch.reverse_compute_at(store, j, preserve_unit_loops=True)
    _straight(sch, sch.get_loops(load)[2:], vector)
    _straight(sch, sch.get_loops(half)[2:])
    _straight(sch, sch.get_loops(store)[4:], vector)
    _straight(sch, [i, j, lane])
    return sch


def _marked(func: tirx.PrimFunc, key: str) -> tuple[s_tir.Schedule, SBlockRV, int] | Refusal:
    """Return a schedule, its one block with annotation ``key``, and the value."""
    if (reason := why_not_schedulable(func)) is not None:
        return Refusal(reason)
    sch = s_tir.Schedule(IRModule({"main": func}))
    blocks = [block for block in leaf_blocks(sch) if key in sch.get(block).annotations]
    if len(blocks) != 1:
        return Refusal("not a Winograd transform")
    return sch, blocks[0], int(sch.get(blocks[0]).annotations[key])


def _shape(sch: s_tir.Schedule, block: SBlockRV) -> list[int]:
    """Return the shape of the output of ``block``."""
    return [int(extent) for extent in sch.get(block).writes[0].source.shape]


def _bind(sch: s_tir.Schedule, loops: Sequence[LoopRV], threads: int) -> LoopRV:
    """Bind the fused ``loops`` to thread blocks and threads; return the loop over threads."""
    grid, thread = split_threads(sch, fuse_all(sch, loops), threads)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _straight(sch: s_tir.Schedule, loops: Sequence[LoopRV], vector: int = 1) -> None:
    """Unroll ``loops``; vectorise the last one where ``vector`` exceeds 1."""
    *outer, lane = loops
    for loop in outer if vector > 1 else loops:
        sch.unroll(loop)
    if vector > 1:
        sch.vectorize(lane)
