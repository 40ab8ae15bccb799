"""TMA descriptors of attention: Q, K, V, output, in any order of axes whose last is ``d``."""

from __future__ import annotations

import dataclasses

from tvm import tirx
from tvm.ir import Expr

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.problem import BYTES
from tvmopt.kernels.cuda.hopper.tma import tensor_map

# Axes of a TMA descriptor, innermost first.
_TMA_AXES = "dshb"


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """TMA descriptors of Q, K, V and the output."""

    q: Expr
    k: Expr
    v: Expr
    out: Expr

    def all(self) -> list[Expr]:
        """Return the descriptors."""
        return [self.q, self.k, self.v, self.out]


def attention_maps(
    problem: AttentionProblem, config: HopperAttentionConfig, parameters: Parameters
) -> AttentionMaps:
    """Emit (in host code) the descriptors of the parameters Q (``a``), K (``b``), V, output."""
    p, keys, queries = problem, config.tile_keys, config.tile_queries
    q, k, v, out = parameters.a, parameters.b, parameters.inputs[0], parameters.out
    return AttentionMaps(
        q=_map(q, p.dtype, p.q_axes, OperandTile(queries, p.head_size), queries),
        k=_map(k, p.dtype, p.k_axes, OperandTile(keys, p.head_size), keys),
        v=_map(v, p.dtype, p.v_axes, OperandTile(keys, p.value_size), keys),
        # Each warpgroup stores its own rows.
        out=_map(out, p.dtype, p.out_axes, OperandTile(queries, p.value_size), 64),
    )


def _map(buffer: tirx.Buffer, dtype: str, axes: str, tile: OperandTile, rows: int) -> Expr:
    """Emit the descriptor of an operand, whose boxes are ``rows`` rows of one line."""
    extents = [int(extent) for extent in buffer.shape]
    strides, step = {}, BYTES[dtype]
    for axis, extent in zip(reversed(axes), reversed(extents), strict=True):
        strides[axis] = step
        step *= extent
    return tensor_map(
        buffer,
        dtype,
        [extents[axes.index(axis)] for axis in _TMA_AXES],
        [strides[axis] for axis in _TMA_AXES[1:]],
        [tile.width, rows, 1, 1],
        swizzle=tile.swizzle,
    )
