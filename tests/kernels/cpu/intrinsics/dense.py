"""A tiled dense layer for any dot-product intrinsic; operands have an offset in their buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T  # noqa: N812

from tests import emulator
from tvmopt import host
from tvmopt.device.cpu import CpuArch
from tvmopt.device.features import required_cpu_flags
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic
from tvmopt.kernels.cpu.intrinsics.llvm_functions import with_llvm_functions

#: LLVM triple and smallest CPU of each family; required features are added.
PLATFORMS = {
    "x86_64": ("", "x86-64", ()),
    "aarch64": ("aarch64-linux-gnu", "generic", ()),
    "hexagon": ("hexagon-unknown-linux-musl", "hexagonv66", ()),
    "riscv64": ("riscv64-linux-gnu", "generic-rv64", ("+m", "+a", "+c", "+d")),
}


#: CPU of the emulator if its default CPU has shorter registers than an intrinsic needs.
LONGER = {"zvl256b": "rv64,v=true,vext_spec=v1.0,vlen=256"}


def arch_of(dot: DotIntrinsic) -> CpuArch:
    """Return the smallest CPU that has ``dot``."""
    mtriple, mcpu, base = PLATFORMS[dot.isa]
    mattr = (*base, *(f"+{feature}" for feature in dot.features))
    bits = dot.lanes * 32
    return CpuArch(mcpu, dot.isa, 1, bits, 32, mattr=mattr, mtriple=mtriple)


def runs_natively(dot: DotIntrinsic) -> bool:
    """Return whether this machine has the features of ``dot``."""
    return dot.isa == host.isa() and host.cpu_flags().issuperset(
        required_cpu_flags(dot.isa, dot.features)
    )


def cannot_run(dot: DotIntrinsic) -> str:
    """Return why ``dot`` runs neither here nor under emulation; empty when it does."""
    if runs_natively(dot):
        return ""
    if dot.isa == "x86_64":  # QEMU emulates neither AVX-512 nor VNNI
        return f"this CPU has no {', '.join(dot.features)}, and no emulator here has"
    tools = emulator.find_tools(dot.isa)
    return tools if isinstance(tools, str) else ""


@dataclasses.dataclass(frozen=True)
class Dense:
    """``sums[m, n] + sum over k of data[m + 1, k + 3] * weight[k, n]``.

    The weight is packed as ``[n / lanes][k / depth][lanes][depth]``; rows of ``data`` are five
    elements longer than K.

    Attributes:
        dot: The intrinsic.
        rows: Rows of a tile.
        row_tiles: Number of tiles along M.
        column_tiles: Number of accumulator vectors along N.
        depth_tiles: Uses of the intrinsic per accumulator vector (tiles along K).
    """

    dot: DotIntrinsic
    rows: int = 3
    row_tiles: int = 2
    column_tiles: int = 3
    depth_tiles: int = 5

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return M, N and K."""
        dot = self.dot
        return (
            self.rows * self.row_tiles,
            dot.lanes * self.column_tiles,
            dot.depth * self.depth_tiles,
        )

    def function(self) -> tirx.PrimFunc:
        """Return ``main(data, weight, sums, result)`` in tiles, not tensorized."""
        dot = self.dot
        rows, columns, depth = self.shape
        height, lanes, step, dtype = self.rows, dot.lanes, dot.depth, dot.accumulator

        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((rows + 1, depth + 5), dot.data),  # noqa: N803
            B: T.Buffer((columns // lanes, depth // step, lanes, step), dot.weight),  # noqa: N803
            S: T.Buffer((rows, columns), dtype),  # noqa: N803
            C: T.Buffer((rows, columns), dtype),  # noqa: N803
        ) -> None:
            T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
            tile = T.sblock_alloc_buffer((rows, columns), dtype, scope="local")
            for i0, j0 in T.grid(rows // height, columns // lanes):
                for i, j in T.grid(height, lanes):
                    with T.sblock("load"):
                        vi = T.axis.spatial(rows, i0 * height + i)
                        vj = T.axis.spatial(columns, j0 * lanes + j)
                        tile[vi, vj] = S[vi, vj]
                for k0, i, j, k in T.grid(depth // step, height, lanes, step):
                    with T.sblock("dense"):
                        vi = T.axis.spatial(rows, i0 * height + i)
                        vj = T.axis.spatial(columns, j0 * lanes + j)
                        vk = T.axis.reduce(depth, k0 * step + k)
                        tile[vi, vj] = tile[vi, vj] + T.cast(A[vi + 1, vk + 3], dtype) * T.cast(
                            B[vj // lanes, vk // step, vj % lanes, vk % step], dtype
                        )
                for i, j in T.grid(height, lanes):
                    with T.sblock("store"):
                        vi = T.axis.spatial(rows, i0 * height + i)
                        vj = T.axis.spatial(columns, j0 * lanes + j)
                        C[vi, vj] = tile[vi, vj]

        return main

    def scheduled(self, unrolled: bool = False) -> tirx.PrimFunc:
        """Return :meth:`function`, tensorized with the intrinsic.

        Args:
            unrolled: Whether to unroll the loops over tiles, so that instructions can be counted.
        """
        sch = s_tir.Schedule(self.function())
        i0, j0, k0, i, j, _ = sch.get_loops(sch.get_sblock("dense"))
        sch.tensorize(j, self.dot.register())
        for loop in (i0, j0, k0, i) if unrolled else (i,):
            sch.unroll(loop)
        for name in ("load", "store"):
            *_, i, j = sch.get_loops(sch.get_sblock(name))
            sch.unroll(i)
            sch.vectorize(j)
        func = sch.mod["main"]
        return with_llvm_functions(func, [self.dot.function]) if self.dot.function else func

    @property
    def instructions(self) -> int:
        """Return the number of uses of the intrinsic."""
        return self.rows * self.row_tiles * self.column_tiles * self.depth_tiles

    def built(self, unrolled: bool = False) -> tvm.runtime.Module:
        """Compile :meth:`scheduled` for the smallest CPU that has the intrinsic."""
        mod = tvm.IRModule({"main": self.scheduled(unrolled)})
        return tvm.tirx.build(mod, target=arch_of(self.dot).to_tvm())

    def run(self, lib: tvm.runtime.Module, operands: Sequence[np.ndarray]) -> np.ndarray:
        """Run ``lib`` on ``operands``: natively if this CPU can, otherwise under emulation."""
        result = np.zeros_like(operands[2])
        if runs_natively(self.dot):
            tensors = [tvm.runtime.tensor(x) for x in (*operands, result)]
            lib["main"](*tensors)
            return tensors[-1].numpy()
        cpu = "".join(LONGER.get(feature, "") for feature in self.dot.features)
        [result] = emulator.run(lib, operands, [result], self.dot.isa, cpu=cpu)
        return result

    def operands(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw data, weight and initial accumulator from the whole range of their dtypes.

        A weight that needs exact pairs is drawn from half of the range.
        """
        rows, columns, depth = self.shape
        rng = np.random.default_rng(seed)
        data = _numbers(rng, (rows + 1, depth + 5), self.dot.data)
        packed = (columns // self.dot.lanes, self.depth_tiles, self.dot.lanes, self.dot.depth)
        weight = _numbers(rng, packed, self.dot.weight)
        if self.dot.exact_pairs_only:
            weight >>= 1
        return data, weight, _numbers(rng, (rows, columns), self.dot.accumulator)

    def expected(self, data: np.ndarray, weight: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Return the NumPy result in int64, truncated to the accumulator, or in float64."""
        _, columns, depth = self.shape
        wide = "int64" if self.dot.accumulator == "int32" else "float64"
        a = data[1:, 3 : 3 + depth].astype(wide)
        w = weight.transpose(0, 2, 1, 3).reshape(columns, depth).astype(wide)
        total = sums.astype(wide) + a @ w.T
        return total.astype("uint32").view("int32") if wide == "int64" else total


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype in ("float32", "bfloat16"):
        made = rng.standard_normal(shape, np.float32)
        return made.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else made
    limits = np.iinfo(dtype)
    made = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    ends = rng.random(shape)
    made[ends < 0.2] = limits.min
    made[ends > 0.8] = limits.max
    return made
