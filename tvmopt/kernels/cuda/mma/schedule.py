"""GEMM with warp MMA (mma.sync); convolution as implicit GEMM.

A thread block computes an output tile, each of its warps a part. K blocks are copied to shared
memory in a cp.async pipeline; ldmatrix loads fragments from there. The accumulators are spilled to
shared memory for the epilogue, which stores whole rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize, tensor_core_operand
from tvmopt.kernels.cuda.common.gemm_form import GemmForm, normalise
from tvmopt.kernels.cuda.common.gemm_inlining import inline_consumers, inline_producers
from tvmopt.kernels.cuda.common.gemm_operand import VECTOR_BYTES, GemmOperand
from tvmopt.kernels.cuda.common.order import bind_blocks, pipeline, pipeline_fragments
from tvmopt.kernels.cuda.common.packing import pack, packed
from tvmopt.kernels.cuda.common.split_k import schedule_split_k_reduction, split_k_reduction
from tvmopt.kernels.cuda.intrinsics.mma import MmaIntrinsic, ldmatrix_transposes
from tvmopt.kernels.cuda.intrinsics.mma_functions import COLUMNS, LANES, ROWS
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.tf32 import why_not_tensor_cores
from tvmopt.kernels.workload import Refusal

NAME = "mma_matmul"


def emit(func: tirx.PrimFunc, config: MmaConfig) -> s_tir.Schedule | Refusal:
    """Schedule the GEMM ``func`` as configured by ``config``.

    Before -> after::

        for i, j: for k: C[i, j] += A[i, k] * B[j, k]

        for block: for warp:
            zero(acc)
            for ko in pipelined:
                As[i, k] = A[i, ko * 32 + k]; Bs[j, k] = B[j, ko * 32 + k]
                for k in T.unroll(2):
                    for i: a[i] = ldmatrix(As); for j: b[j] = ldmatrix(Bs)
                    for i, j: acc[i, j] = mma(a[i], b[j], acc[i, j])
            Cs[i, j] = acc
            C[i, j] = Cs[i, j]
    """
    gemm = normalise(func)
    if isinstance(gemm, Refusal):
        return gemm
    mma = mma_of(gemm, config.arch)
    if isinstance(mma, Refusal):
        return mma
    if (refusal := why_not_mma(config, mma)) is not None:
        return refusal
    if gemm.extents[3] < max(2, config.split_k):
        return Refusal("K is too short: TVM sees no reduction in a loop of one iteration")
    sch, anchor, total = gemm.sch, gemm.anchor, None
    sch.pad_einsum(anchor, [1, *config.tile, config.k_block * config.split_k])
    if config.split_k > 1:
        anchor, total = split_k_reduction(sch, anchor, config.split_k)
    tiles = _tile_loops(sch, anchor, config, mma)
    copies = _copy_to_shared(tiles, gemm, config, mma)
    fragments = _fragments(tiles, gemm)
    result = _multiply(tiles, gemm, fragments, mma)
    run = gemm.store_elements
    if total is None:
        inline_consumers(sch, result)
        run = gemm.out_run
    _store(sch, result, gemm, run)
    _unroll_and_pipeline(tiles, copies, config, mma)
    if total is not None:
        schedule_split_k_reduction(sch, total, math.gcd(gemm.out_run, gemm.store_elements))
    return sch


def mma_of(gemm: GemmForm, arch: CudaArch) -> MmaIntrinsic | Refusal:
    """Return the MMA intrinsic for the operands of ``gemm``."""
    a, b = gemm.operands
    if (refusal := why_not_tensor_cores(a.dtype, gemm.allow_tf32)) is not None:
        return refusal
    read_as = tensor_core_operand(a.dtype).name
    if arch.tensor_shape(read_as) is None or arch.sm < 80:
        return Refusal(f"{arch.name} has no mma.sync of {read_as} with ldmatrix and cp.async")
    # The copy to shared memory transposes what ldmatrix cannot.
    by_copy = not ldmatrix_transposes(a.dtype)
    a_along, b_along = (by_copy or x.contiguous != "x" for x in gemm.operands)
    swapped = a.index > b.index
    try:
        return MmaIntrinsic(a.dtype, gemm.accumulator, a_along, b_along, swapped, b.dtype)
    except ValueError:
        return Refusal(f"no mma.sync multiplies {a.dtype} by {b.dtype} into {gemm.accumulator}")


def why_not_mma(config: MmaConfig, mma: MmaIntrinsic) -> Refusal | None:
    """Return why no GEMM can have ``config``; None where one can."""
    if any(b % w for b, w in zip(config.tile, config.warp_tile, strict=True)):
        return Refusal("warp tiles must divide the tile")
    (warp_rows, warp_columns), k_block = config.warp_tile, config.k_block
    if warp_rows % ROWS or warp_columns % COLUMNS or k_block % mma.depth or k_block < 1:
        return Refusal(f"a warp tile must be of {ROWS} x {COLUMNS}, k_block of {mma.depth}")
    threads = config.warps * LANES
    if threads > config.arch.threads_block:
        return Refusal("too many warps")
    if any(b * k_block % threads for b in config.tile):
        return Refusal("each thread must copy the same number of elements")
    if config.stages > 2 and not config.async_copy:
        return Refusal("more than two stages need async_copy")
    return None


@dataclasses.dataclass(frozen=True)
class _TileLoops:
    """The GEMM's loop nest after tiling, from the outside to the inside.

    Attributes:
        sch: The schedule.
        batch: Number of batch loops, one more with split-K.
        warp: Loop over the warps of a thread block.
        k_block: Loop over K blocks.
        k_step: Loop over the MMA steps of a K block.
        rows: Loop over the MMA tiles of a warp along the rows.
        columns: The same along the columns.
        mma_tile: Block around one MMA.
        element: Block in it, of one multiply-add.
    """

    sch: s_tir.Schedule
    batch: int
    warp: LoopRV
    k_block: LoopRV
    k_step: LoopRV
    rows: LoopRV
    columns: LoopRV
    mma_tile: SBlockRV
    element: SBlockRV


def _tile_loops(
    sch: s_tir.Schedule, anchor: SBlockRV, config: MmaConfig, mma: MmaIntrinsic
) -> _TileLoops:
    """Tile the GEMM by thread block, warp, K block and MMA; bind blocks and warps."""
    (bm, bn), (wm, wn) = config.tile, config.warp_tile
    *batch, i, j, k = sch.get_loops(anchor)
    i, i_in = sch.split(i, [None, ROWS])
    j, j_in = sch.split(j, [None, COLUMNS])
    k, k_in = sch.split(k, [None, mma.depth])
    sch.reorder(*batch, i, j, k, i_in, j_in, k_in)
    mma_tile = sch.blockize(i_in)
    i0, i1, i2 = sch.split(i, [None, bm // wm, wm // ROWS])
    j0, j1, j2 = sch.split(j, [None, bn // wn, wn // COLUMNS])
    k0, k1 = sch.split(k, [None, config.k_block // mma.depth])
    sch.reorder(*batch, i0, j0, i1, j1, k0, k1, i2, j2)
    bind_blocks(sch, batch, i0, j0, config.raster_group)
    warp = sch.fuse(i1, j1)
    sch.bind(warp, "threadIdx.y")
    return _TileLoops(sch, len(batch), warp, k0, k1, i2, j2, mma_tile, anchor)


def _copy_to_shared(
    tiles: _TileLoops, gemm: GemmForm, config: MmaConfig, mma: MmaIntrinsic
) -> list[SBlockRV]:
    """Copy the operands' K blocks to shared memory; first pack those that ``config`` packs."""
    sch, depth = tiles.sch, config.k_block * config.split_k
    copies = []
    for n, (operand, along) in enumerate(
        zip(gemm.operands, (mma.a_along_k, mma.b_along_k), strict=True)
    ):
        guarded = operand.padded or gemm.ragged(operand, config.tile[n], depth)
        if config.packs[n]:
            packing = pack(sch, tiles.mma_tile, operand.index, along)
            operand, guarded = packed(operand, along), False
        vector = _vector(operand, along, guarded)
        copies.append(_copy(tiles, n, operand, along, vector, config))
        if config.packs[n] and not along:
            # After its reader: a copy takes the layout of its source.
            sch.transform_layout(packing, ("write", 0), lambda s, x, k: (s, k, x))
    return copies


def _fragments(tiles: _TileLoops, gemm: GemmForm) -> list[SBlockRV]:
    """Load each operand's fragments from shared memory into registers, by MMA step."""
    fragments = []
    for operand in gemm.operands:
        fragment = tiles.sch.cache_read(tiles.mma_tile, operand.index, "local")
        tiles.sch.compute_at(fragment, tiles.k_step, preserve_unit_loops=True)
        fragments.append(fragment)
    return fragments


def _multiply(
    tiles: _TileLoops, gemm: GemmForm, fragments: list[SBlockRV], mma: MmaIntrinsic
) -> SBlockRV:
    """Tensorize fragment loads, MMAs and accumulators.

    Returns:
        The block that reads the accumulators, spilled to shared memory, row by row.
    """
    sch = tiles.sch
    result = sch.cache_write(tiles.mma_tile, 0, "shared.dyn")
    acc = sch.cache_write(tiles.mma_tile, 0, "local")
    sch.reverse_compute_at(acc, tiles.warp, preserve_unit_loops=True)
    sch.reverse_compute_at(result, tiles.warp, preserve_unit_loops=True)
    tile = _tile(sch, acc, ROWS, COLUMNS)
    init = sch.decompose_reduction(tiles.mma_tile, tiles.k_block)
    _tensorize_loads(sch, fragments, mma)
    sch.transform_layout(acc, ("read", 0), _accumulator_map(mma, tiles.batch))
    sch.tensorize(sch.get_loops(tiles.element)[-3], mma.multiply())
    (init_inner,) = sch.get_child_blocks(init)
    sch.tensorize(sch.get_loops(init_inner)[-2], mma.zero())
    # Row pitch of 32 bytes more than a multiple of 128: stores of a warp hit different banks.
    stored, size = sch.blockize(tile), itemsize(gemm.accumulator)
    sch.storage_align(stored, 0, axis=-2, factor=int(128 / size), offset=int(32 / size))
    sch.tensorize(stored, mma.store())
    return result


def _unroll_and_pipeline(
    tiles: _TileLoops, copies: list[SBlockRV], config: MmaConfig, mma: MmaIntrinsic
) -> None:
    """Unroll the loops of a warp, and overlap the copies of coming K blocks with the MMAs."""
    sch = tiles.sch
    sch.unroll(tiles.rows)
    sch.unroll(tiles.columns)
    sch.annotate(tiles.columns, "pragma_unroll_explicit", 0)
    stages = min(config.stages, int(sch.get(tiles.k_block).extent))
    # Unrolled, because registers cannot be indexed by a loop variable.
    sch.unroll(tiles.k_step)
    if stages > 2 and config.double_buffer_fragments and config.k_block > mma.depth:
        pipeline_fragments(sch, tiles.k_block, tiles.k_step, stages)
    elif stages > 1:
        pipeline(sch, tiles.k_block, copies, stages, config.async_copy)


def _tensorize_loads(sch: s_tir.Schedule, fragments: list[SBlockRV], mma: MmaIntrinsic) -> None:
    """Tensorize the copies from shared memory into fragments with ldmatrix."""
    loads = (
        (mma.a_along_k, mma.place_a, mma.load_a()),
        (mma.b_along_k, mma.place_b, mma.load_b()),
    )
    for fragment, (along, place, load) in zip(fragments, loads, strict=True):
        shape = (ROWS, mma.depth) if along else (mma.depth, ROWS)
        tile = _tile(sch, fragment, *shape)
        sch.transform_layout(fragment, ("write", 0), _fragment_map(place, mma.depth, along))
        sch.tensorize(tile, load)


def _fragment_map(place: Any, depth: int, along: bool) -> Any:
    """Return the map from an operand's shared-memory indices to fragment indices."""

    def index(s: Any, x: Any, k: Any) -> Any:
        return (s, x // ROWS, k // depth, *place(x % ROWS, k % depth))

    def transposed(s: Any, k: Any, x: Any) -> Any:
        return index(s, x, k)

    return index if along else transposed


def _accumulator_map(mma: MmaIntrinsic, batch: int) -> Any:
    """Return the map from output indices to accumulator fragment indices, with ``batch`` axes."""

    def index(s: Any, i: Any, j: Any) -> Any:
        return (s, i // ROWS, j // COLUMNS, *mma.place_c(i % ROWS, j % COLUMNS))

    def of_part(p: Any, s: Any, i: Any, j: Any) -> Any:
        return (p, *index(s, i, j))

    return index if batch == 1 else of_part


def _copy(
    tiles: _TileLoops,
    place: int,
    operand: GemmOperand,
    along: bool,
    vector: int,
    config: MmaConfig,
) -> SBlockRV:
    """Copy an operand to shared memory with a row pitch of an odd multiple of 16 bytes."""
    sch, warps = tiles.sch, config.warps
    copy = sch.cache_read(tiles.mma_tile, operand.index, "shared.dyn")
    size = itemsize(operand.dtype)
    if not along:
        sch.transform_layout(copy, ("write", 0), lambda s, x, k: (s, k, x))
    sch.compute_at(copy, tiles.k_block, preserve_unit_loops=True)
    if not config.packs[place]:
        inline_producers(sch, copy)
    sch.storage_align(copy, 0, axis=1, factor=int(32 / size), offset=int(16 / size))
    x, k = sch.get_loops(copy)[-2:]
    along_k = operand.contiguous == "k" if operand.contiguous else along
    if not along_k:
        sch.reorder(k, x)
    count = config.k_block * config.tile[place]
    inner = config.k_block if along_k else config.tile[place]
    while vector > 1 and (count % (warps * LANES * vector) or inner % vector):
        vector //= 2
    fused = sch.fuse(*((x, k) if along_k else (k, x)))
    _, y, lane, element = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    if vector > 1:
        sch.vectorize(element)
    return copy


def _vector(operand: GemmOperand, along: bool, guarded: bool) -> int:
    """Return the vector width of an operand's copy, in elements."""
    size = itemsize(operand.dtype)
    if (operand.contiguous == "k" if operand.contiguous else along) != along:
        return 1
    most = int(VECTOR_BYTES / max(size, operand.size))
    if size == 1 and guarded:
        most = 4  # TVM generates wrong code for selects of longer byte vectors
    return min(operand.run, most)


def _tile(sch: s_tir.Schedule, block: SBlockRV, height: int, width: int) -> LoopRV:
    """Tile the last two loops; return the first loop of a tile."""
    x, y = sch.get_loops(block)[-2:]
    x0, x1 = sch.split(x, [None, height])
    y0, y1 = sch.split(y, [None, width])
    sch.reorder(x0, y0, x1, y1)
    sch.unroll(x0)
    sch.unroll(y0)
    return x1


def _store(sch: s_tir.Schedule, result: SBlockRV, gemm: GemmForm, run: int) -> None:
    """Store finished rows from shared memory with vectors."""
    rows, columns = sch.get_loops(result)[-2:]
    width = int(sch.get(columns).extent)
    count = int(sch.get(rows).extent) * width
    vector = math.gcd(width, run, gemm.store_elements)
    while vector > 1 and count % (LANES * vector):
        vector //= 2
    fused = sch.fuse(rows, columns)
    _, lane, element = sch.split(fused, [None, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    if vector > 1:
        sch.vectorize(element)
