"""Warp-specialised GEMM for Hopper: TMA loads, a ring of pipeline stages, wgmma.

A thread block has one producer warpgroup and one to three consumer warpgroups. A single thread of
the producer issues TMA loads into the ring; the consumers issue wgmma and run the epilogue.
A pipeline stage spans 128 bytes of K: one atom of the 128-byte swizzle. TMA clips at the edges: it
reads zeros out of bounds and does not store there, so ragged M, N and K need no code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import K_BLOCK_BYTES, HopperConfig
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder, tensor_map
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity
from tvmopt.kernels.cuda.hopper.mainloop import Kernel
from tvmopt.kernels.cuda.hopper.operand import TmaOperand
from tvmopt.kernels.cuda.hopper.operand_copies import Copies
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, mark, plain_signature
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, KernelSignature, ceil_div
from tvmopt.kernels.cuda.hopper.split_k_reduction import add_up
from tvmopt.kernels.workload import Refusal


def gemm(
    problem: GemmProblem,
    config: HopperConfig,
    name: str | None = "main",
    signature: KernelSignature | None = None,
) -> tirx.PrimFunc | Refusal:
    """Emit the GEMM kernel: a PrimFunc of A, B, the epilogue's inputs, and C.

    Args:
        problem: Extents, dtypes, layouts and epilogue.
        config: Tile shape, pipeline and epilogue store.
        name: Global symbol of the PrimFunc; None for a private one.
        signature: Parameters of the PrimFunc; :func:`gemm_signature` by default.

    Returns:
        A TIRx PrimFunc (``tir_pipeline="tirx"``). A has the shape ``([batch,] m, k)``, B
        ``([batch,] k, n)`` and C ``([batch,] m, n)``. A transposed operand has its last two axes
        swapped. A refusal where ``config`` does not fit ``problem``.
    """
    if reason := config.why_not(problem):
        return reason
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        _body(problem, config, name, signature or gemm_signature(problem))
    return builder.get()


def gemm_signature(problem: GemmProblem) -> KernelSignature:
    """Return the default parameters: A, B, the epilogue's inputs, C."""
    p = problem
    rows = tirx.Var("m", "int64") if p.dynamic else p.m
    batched = (p.batch,) if p.batch > 1 else ()
    a_shape = (p.k, rows) if p.trans_a else (rows, p.k)
    b_shape = (p.n, p.k) if p.trans_b else (p.k, p.n)
    return plain_signature(
        ((batched if p.batch_a else ()) + a_shape, p.dtype),
        ((batched if p.batch_b else ()) + b_shape, p.dtype),
        ((*batched, rows, p.n), p.out),
        p.epilogue_or_cast(),
        rows if p.dynamic else None,
    )


def _body(p: GemmProblem, c: HopperConfig, name: str | None, signature: KernelSignature) -> None:
    """Emit the parameters, the packing kernel, the GEMM, and the split-K reduction kernel."""
    mark(name, "hopper_gemm")
    parameters = declare(signature)
    rows = signature.rows if p.dynamic else p.m
    batch_a, batch_b = (p.batch if p.batch_a else 1), (p.batch if p.batch_b else 1)
    a, b = _copy(p, parameters, (batch_a, batch_b))
    first = (a, p.dtype, rows, p.k, p.k_major[0], batch_a)
    second = (b, p.dtype, p.n, p.k, p.k_major[1], batch_b)
    left = TmaOperand(*(second if c.swap_ab else first), c.tile_m, c.cluster_n)
    right = TmaOperand(*(first if c.swap_ab else second), c.tile_n, c.cluster_m)
    if not c.split_k_workspace:
        GemmKernel(p, c, left, right, parameters, p.epilogue_or_cast(), rows).emit()
        return
    shape = (*((p.batch,) if p.batch > 1 else ()), p.m, p.n)
    partial = build.alloc_buffer((c.split_k, *shape), p.accumulator, scope="global")
    target = dataclasses.replace(parameters, out=partial, inputs=[])
    sums = identity(p.accumulator, p.accumulator)
    GemmKernel(p, c, left, right, target, sums, rows).emit()
    add_up(c, partial, shape, p.accumulator, p.out, p.epilogue_or_cast(), parameters)


def _copy(p: GemmProblem, parameters: Parameters, batches: tuple[int, int]) -> list[Any]:
    """Emit the packing kernel; return the buffers or pointers that TMA loads A and B from."""
    copies = Copies(p.dtype)
    buffers = (parameters.a, parameters.b)
    parts: list[int | None] = []
    for buffer, (rows, width), batch, copied, turned in zip(
        buffers, p.stored, batches, p.packed, p.transposed, strict=True
    ):
        if turned:
            parts.append(copies.turned(buffer, batch, rows, width))
        else:
            parts.append(copies.rows(buffer, rows * batch, width) if copied else None)
    copies.emit()
    return [
        buffer if part is None else copies.pointer(part)
        for buffer, part in zip(buffers, parts, strict=True)
    ]


class GemmKernel(Kernel):
    """GEMM main loop over the output tiles of a batched matmul.

    With split-K through workspace, each K slice is a batch entry: the kernel writes its partial
    sums as ``split`` consecutive matrices.
    """

    def __init__(
        self, problem: GemmProblem, config: HopperConfig, left: TmaOperand, right: TmaOperand,
        parameters: Parameters, epilogue: Epilogue, rows: Any,
    ) -> None:  # fmt: skip
        p = problem
        steps = ceil_div(p.k * BYTES[p.dtype], K_BLOCK_BYTES)
        out = p.accumulator if config.split_k_workspace else p.out
        super().__init__(config, p.dtype, out, steps, epilogue, parameters)
        self.problem = p
        if steps == 1:
            self.instructions = ceil_div(p.k * BYTES[p.dtype], 32)
        self.left, self.right = left, right
        self.rows = rows
        self.maps = [*left.maps, *right.maps]
        self.left_major, self.right_major = left.major, right.major
        self.parts = config.split_k if config.split_k_workspace else 1
        self.batch = p.batch * self.parts
        self.out_shape = (*((self.batch,) if self.batch > 1 else ()), rows, p.n)
        if not config.smem_store:
            self.out_map = self._map_of(parameters.out, out)
            self.maps += [self.out_map, *self._load_residual_ahead(self._map_of)]

    def _map_of(self, buffer: Any, dtype: str) -> Any:
        """Return the TMA descriptor of a tensor that has the shape of the output."""
        size = BYTES[dtype]
        shape, strides = [self.problem.n, self.rows], [self.problem.n * size]
        box = [128 // size, self.config.buffer_rows]
        if self.batch > 1:
            shape.append(self.batch)
            strides.append(self.problem.m * self.problem.n * size)
            box.append(1)
        return tensor_map(buffer, dtype, shape, strides, box, promotion=0)

    def extents(self) -> tuple[Any, Any]:
        """Return rows and columns of the tiled problem (swapped with ``swap``), int32."""
        m = T.cast(self.rows, "int32") if self.problem.dynamic else self.problem.m
        return (self.problem.n, m) if self.config.swap_ab else (m, self.problem.n)

    def part(self, tile: Any) -> Any:
        """Return the index of the K slice that this thread block computes."""
        return quotient(tile.batch, self.problem.batch) if self.parts > 1 else self.rank

    def stage_bytes(self, tile: Any) -> Any:
        """Return the transaction bytes of one stage (what its full barrier expects)."""
        missing = self.left.missing(tile.row) + self.right.missing(tile.column)
        return self.config.stage_bytes - missing

    def load(self, slot: Any, step: Any, tile: Any) -> None:
        """Issue the TMA loads of one pipeline stage."""
        bar = self.full.pointer(slot)
        batch = remainder(tile.batch, self.problem.batch) if self.parts > 1 else tile.batch
        of = self.sharing
        self.left.load(self.left_ring, slot, bar, tile.row, step, batch, of.left, of.of_rows)
        self.right.load(
            self.right_ring, slot, bar, tile.column, step, batch, of.above, of.of_columns
        )

    def place(self, tile: Any, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Return where element (row, column) of C lies, with bounds to check.

        Returns:
            The output indices; and the pairs (index, bound), where bound is None if the index
            cannot exceed its extent.
        """
        c = self.config
        left, right = self.extents()
        ragged_left = _ragged(left, c.tile_m * c.cluster_m)
        ragged_right = _ragged(right, c.tile_n * c.cluster_n)
        bounds = (ragged_right, ragged_left) if c.swap_ab else (ragged_left, ragged_right)
        indices = list(zip((row, column), bounds, strict=True))
        if self.batch > 1:
            indices.insert(0, (tile.batch, None))
        return [i for i, _ in indices], indices

    def corner_of(self, tile: Any, group: Any, first: int) -> list[Any]:
        """Return the TMA coordinates of one warpgroup's 128-byte-wide epilogue tile."""
        own = tile.row + group * (64 * self.config.m_atoms)
        start = [own + first, tile.column] if self.config.swap_ab else [tile.column + first, own]
        if self.batch > 1:
            start.append(tile.batch)
        return start


def _ragged(extent: Any, tiles: int) -> Any:
    """Return ``extent`` if the last tile may exceed it, else None."""
    return extent if not isinstance(extent, int) or extent % tiles else None
