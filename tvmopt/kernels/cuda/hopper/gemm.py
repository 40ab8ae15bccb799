"""GEMM for Hopper: the PrimFunc, how its tiles cover C, and its packing and reduction kernels.

TMA clips at the edges: it reads zeros out of bounds and does not store there, so ragged M, N and K
need no code.
"""

from __future__ import annotations

import dataclasses

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.epilogue import identity
from tvmopt.kernels.cuda.hopper.gemm_loader import GemmLoader, TmaOperand
from tvmopt.kernels.cuda.hopper.kernel import HopperKernel
from tvmopt.kernels.cuda.hopper.output import Output, Tiling
from tvmopt.kernels.cuda.hopper.packing import PackingKernel
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, mark, plain_signature
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, KernelSignature
from tvmopt.kernels.cuda.hopper.split_k_reduction import split_k_reduction
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tensor_map
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
    a, b = _pack(p, parameters, (batch_a, batch_b))
    first = (a, p.dtype, rows, p.row_elements, p.k_major[0], batch_a)
    second = (b, p.dtype, p.n, p.row_elements, p.k_major[1], batch_b)
    left = TmaOperand(*(second if c.swap_ab else first), c.tile_m, c.cluster_n)
    right = TmaOperand(*(first if c.swap_ab else second), c.tile_n, c.cluster_m, c.loaded_n)
    loader, tiling = GemmLoader(p, c, left, right), GemmTiling(p, c, rows)
    epilogue = p.epilogue_or_cast()
    if not c.split_k_workspace:
        output = Output(c, tiling, p.out, p.accumulator, epilogue, parameters)
        HopperKernel(c, loader, output, loader.maps + output.maps).emit()
        return
    shape = (*((p.batch,) if p.batch > 1 else ()), p.m, p.n)
    partial = build.alloc_buffer((c.split_k, *shape), p.accumulator, scope="global")
    target = dataclasses.replace(parameters, out=partial, inputs=[])
    plain = identity(p.accumulator, p.accumulator)
    output = Output(c, tiling, p.accumulator, p.accumulator, plain, target)
    HopperKernel(c, loader, output, loader.maps + output.maps).emit()
    split_k_reduction(c, partial, shape, p.accumulator, p.out, epilogue, parameters)


def _pack(
    p: GemmProblem, parameters: Parameters, batches: tuple[int, int]
) -> list[tirx.Buffer | Expr]:
    """Emit the packing kernel; return the buffers or pointers that TMA loads A and B from."""
    packing = PackingKernel(p.dtype)
    buffers = (parameters.a, parameters.b)
    parts: list[int | None] = []
    for buffer, (rows, width), batch, packed, transposed in zip(
        buffers, p.stored, batches, p.packed, p.transposed, strict=True
    ):
        if p.split_float32:
            parts.append(packing.split(buffer, batch, rows, width, transposed))
        elif transposed:
            parts.append(packing.transpose(buffer, batch, rows, width))
        else:
            parts.append(packing.rows(buffer, rows * batch, width) if packed else None)
    packing.emit()
    return [
        buffer if part is None else packing.pointer(part)
        for buffer, part in zip(buffers, parts, strict=True)
    ]


class GemmTiling(Tiling):
    """Tiles of C, or with swapped A and B of its transpose.

    With split-K through workspace, each K slice is a batch entry: the kernel writes its partial
    accumulators as ``split_k`` consecutive matrices.
    """

    def __init__(self, problem: GemmProblem, config: HopperConfig, rows: Expr | int) -> None:
        self._problem, self._config, self._rows = problem, config, rows
        self.batch = problem.batch
        matrices = problem.batch * (config.split_k if config.split_k_workspace else 1)
        self._batched = matrices > 1
        self.shape = (*((matrices,) if self._batched else ()), rows, problem.n)

    def extents(self) -> tuple[Expr | int, Expr | int]:
        """Return rows and columns of the tiled problem (swapped with ``swap_ab``), int32."""
        m = T.cast(self._rows, "int32") if self._problem.dynamic else self._problem.m
        return (self._problem.n, m) if self._config.swap_ab else (m, self._problem.n)

    def tensor_map(self, buffer: tirx.Buffer, dtype: str) -> Expr:
        """Emit the TMA descriptor of a tensor of the output's shape, for epilogue tiles."""
        p, size = self._problem, BYTES[dtype]
        shape, strides = [p.n, self._rows], [p.n * size]
        box = [128 // size, self._config.buffer_rows]
        if self._batched:
            shape.append(self.shape[0])
            strides.append(p.m * p.n * size)
            box.append(1)
        return tensor_map(buffer, dtype, shape, strides, box, promotion=0)

    def place(
        self, tile: Tile, row: Expr, column: Expr
    ) -> tuple[list[Expr], list[tuple[Expr, Expr | int | None]]]:
        """Return where element (row, column) of C lies, with bounds to check."""
        c = self._config
        left, right = self.extents()
        bounds = [_ragged(left, c.tile_m * c.cluster_m), _ragged(right, c.tile_n * c.cluster_n)]
        if c.swap_ab:
            bounds.reverse()
        indices = list(zip((row, column), bounds, strict=True))
        if self._batched:
            indices.insert(0, (tile.batch, None))
        return [i for i, _ in indices], indices

    def corner(self, tile: Tile, warpgroup: Expr, first: int) -> list[Expr]:
        """Return the TMA coordinates of one warpgroup's 128-byte-wide epilogue tile."""
        own = tile.row + self._config.first_row_of(warpgroup)
        start = [own + first, tile.column] if self._config.swap_ab else [tile.column + first, own]
        return [*start, tile.batch] if self._batched else start


def _ragged(extent: Expr | int, tiles: int) -> Expr | int | None:
    """Return ``extent`` if the last tile may exceed it, else None."""
    return extent if not isinstance(extent, int) or extent % tiles else None
