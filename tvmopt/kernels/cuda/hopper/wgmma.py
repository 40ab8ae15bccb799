"""wgmma: the accumulators of a consumer warpgroup and the instructions of one K block.

Accumulator fragment of ``m64nN`` in one thread: warp ``w`` of the warpgroup holds rows 16 w to
16 w + 15. Its rows ``r`` and ``r + 8`` of each 8-column block ``j`` are spread over the lanes::

                     8 j + 0, 1   8 j + 2, 3   8 j + 4, 5   8 j + 6, 7
    row 16 w + 0       lane 0       lane 1       lane 2       lane 3
    row 16 w + 1       lane 4       lane 5       lane 6       lane 7
    ...                ...
    row 16 w + 7       lane 28      lane 29      lane 30      lane 31
    row 16 w + 8 ..    the same lanes, registers + 2

    row = 16 w + lane / 4 + 8 h, column = 8 j + 2 (lane % 4) + e, register 4 j + 2 h + e
"""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.tile_primitive.common import smem_desc_add_16B_offset as advance
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Threads, pin
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES
from tvmopt.kernels.cuda.hopper.smem_layout import OperandLayout
from tvmopt.kernels.cuda.hopper.split_float32 import PRODUCTS
from tvmopt.kernels.cuda.hopper.turns import Turns


class Accumulators:
    """Accumulator registers of a thread, for all ``m_atoms`` of its warpgroup.

    Attributes:
        dtype: float32 or int32.
        registers: float32; the asm constraints of wgmma want uint32 in place of int32.
    """

    def __init__(self, config: HopperConfig, dtype: str) -> None:
        self.dtype = dtype
        self._is_int = dtype == "int32"
        self._columns = config.tile_n
        self.registers: tirx.Buffer = build.alloc_local(
            [config.m_atoms * config.tile_n // 2], "uint32" if self._is_int else "float32"
        )

    def index(self, atom: int, column: int, half: int = 0) -> int:
        """Return the first register of an 8-column block.

        Args:
            atom: 64-row wgmma tile.
            column: First column of the block.
            half: 0 for rows 0 to 7 of each 16, 1 for rows 8 to 15.
        """
        return atom * self._columns // 2 + column // 2 + 2 * half

    def __getitem__(self, index: int) -> Expr:
        value = self.registers[index]
        return T.cast(value, "int32") if self._is_int else value


class Mma:
    """The wgmma of a consumer warpgroup.

    Attributes:
        accumulators: The accumulators.
    """

    def __init__(
        self, config: HopperConfig, loader: Loader, pipeline: Pipeline, threads: Threads
    ) -> None:
        self._config, self._loader, self._threads = config, loader, threads
        self._pipeline = pipeline
        self.accumulators = Accumulators(config, dtypes.dtype(loader.dtype).accumulator)
        self._sums = self.accumulators
        self._left = matrix_descriptor(pipeline.left, loader.left_layout)
        self._right = matrix_descriptor(pipeline.right, loader.right_layout)

    def issue(self, slot: Expr, accumulate: Expr) -> None:
        """Issue and commit the wgmma of one stage; without ``accumulate`` they overwrite."""
        build.evaluate(T.ptx.wgmma.fence.sync.aligned())
        self._multiply(slot, accumulate)
        build.evaluate(T.ptx.wgmma.commit_group.sync.aligned())

    def multiply_tile(self, k_blocks: Expr, turns: Turns) -> None:
        """Emit the main loop of a tile: all K blocks, each released once it is multiplied."""
        turns.wait()
        pipeline, depth = self._pipeline, self._config.wgmma_wait_depth
        with build.serial(0, k_blocks) as k:
            slot = pipeline.wait_full()
            self.issue(slot, accumulate=k > 0)
            self.wait(depth)
            pipeline.release_finished(slot, k)
            pipeline.advance()
        turns.hand_over()
        self.wait(0)
        pipeline.release_last(k_blocks)
        turns.skip()

    def wait(self, depth: int) -> None:
        """Wait until at most ``depth`` committed groups are in flight."""
        build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(depth))

    def _multiply(self, slot: Expr, accumulate: Expr, parts: tuple[int, int] = (0, 0)) -> None:
        """Issue the wgmma of one stage, for the given part of the left and the right operand."""
        c, dtype = self._config, self._loader.dtype
        size, per_atom = BYTES[dtype], c.tile_n // 2
        row = dtypes.tensor_core_operand(dtype)
        types = f"{dtypes.dtype(row.accumulator).ptx}.{row.ptx}.{row.ptx}"
        name = f"wgmma.mma_async.sync.aligned.m64n{c.tile_n}k{32 // size}.{types}"
        rows, columns = self._loader.left_layout, self._loader.right_layout
        # Descriptor addresses are in units of 16 bytes.
        mine = c.part_of(self._threads.warpgroup) * (c.warpgroup_m * K_BLOCK_BYTES // 16)
        first, second = (slot * c.parts + part for part in parts)
        left = advance(self._left[0], first * (c.tile_m * K_BLOCK_BYTES // 16) + mine)
        right = advance(self._right[0], second * (c.loaded_n * K_BLOCK_BYTES // 16))
        for k in range(self._loader.k_steps):
            for m in range(c.m_atoms):
                args = [self._sums.registers[m * per_atom + i] for i in range(per_atom)]
                args.append(advance(left, rows.steps[k] + m * rows.atom))
                args.append(advance(right, columns.steps[k]))
                args.append(T.ptx.pred(accumulate) if k == 0 else T.ptx.pred(1))
                if row.is_float:
                    args += [1, 1]
                if size == 2:
                    args += [int(not rows.k_major), int(not columns.k_major)]
                build.evaluate(T.ptx[name](*args))


class SplitMma(Mma):
    """The wgmma of split float32 operands: three a K block, whose sum is added exactly.

    Tensor cores truncate their accumulators, so K blocks accumulate in separate registers.
    """

    def __init__(
        self, config: HopperConfig, loader: Loader, pipeline: Pipeline, threads: Threads
    ) -> None:
        super().__init__(config, loader, pipeline, threads)
        self._parts = [
            Accumulators(config, self.accumulators.dtype) for _ in range(config.block_sums)
        ]

    def issue(self, slot: Expr, accumulate: Expr) -> None:
        """Issue and commit the wgmma of one stage: three, of parts of the operands."""
        build.evaluate(T.ptx.wgmma.fence.sync.aligned())
        for number, parts in enumerate(PRODUCTS):
            self._multiply(slot, accumulate if number == 0 else tirx.const(True, "bool"), parts)
        build.evaluate(T.ptx.wgmma.commit_group.sync.aligned())

    def multiply_tile(self, k_blocks: Expr, turns: Turns) -> None:
        """Emit the main loop of a tile; a sum is added under the first product of the next.

        There are no turns: ping-pong is refused, because additions between the K blocks overlap no
        wgmma of a warpgroup that waits for its turn.
        """
        pipeline = self._pipeline
        for i in range(self._count):
            build.buffer_store(self.accumulators.registers, T.float32(0), [i])
        with build.serial(0, k_blocks):
            for turn in range(self._loader.group):
                before, self._sums = self._sums, self._parts[turn % len(self._parts)]
                slot = pipeline.wait_full()
                self.issue(slot, accumulate=tirx.const(False, "bool"))
                if turn and len(self._parts) > 1:
                    self._finish(before, in_flight=1)
                pipeline.advance()
                if turn == self._loader.group - 1 or len(self._parts) == 1:
                    self._finish(self._sums, in_flight=0)

    def _finish(self, sums: Accumulators, in_flight: int) -> None:
        """Wait for the K block of ``sums``, the stage before; release it, and add its sum."""
        self.wait(in_flight)
        self._pipeline.release_behind(1)
        self._add(sums)

    def _add(self, sums: Accumulators) -> None:
        total = self.accumulators.registers
        pin([sums.registers[i] for i in range(self._count)])
        for i in range(self._count):
            build.buffer_store(total, total[i] + sums.registers[i], [i])

    @property
    def _count(self) -> int:
        return self._config.m_atoms * self._config.tile_n // 2


def matrix_descriptor(ring: tirx.Buffer, layout: OperandLayout) -> tirx.Buffer:
    """Emit the wgmma matrix descriptor of a ring's first stage."""
    result = build.alloc_local([1], "uint64")
    build.evaluate(
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(result[0]),
            ring.ptr_to([0, 0]),
            layout.leading,
            layout.stride,
            layout.swizzle,
        )
    )
    return result
