"""TMA: tensor descriptors, loads (optionally multicast) and stores of boxes.

Every function emits into the innermost frame of the active ``IRBuilder``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

_TMA_LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
_TMA_STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"


def tensor_map(
    buffer: tirx.Buffer | Expr,
    dtype: str,
    shape: Sequence[Expr | int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    steps: Sequence[int] = (),
    swizzle: int = 3,
    promotion: int = 2,
) -> Expr:
    """Emit (in host code) a TMA descriptor: ``cuTensorMapEncodeTiled``.

    Args:
        buffer: The tensor, or a pointer to it.
        dtype: Its dtype.
        shape: Its extents, innermost first.
        strides: Strides in bytes of all dimensions but the innermost.
        box: Extents of the box that one TMA instruction copies.
        steps: Element strides of the box; 1 by default.
        swizzle: Shared-memory swizzle: 1, 2, 3 for 32, 64 and 128 bytes.
        promotion: L2 promotion: 0 none, 1, 2, 3 for 64, 128 and 256 bytes.

    Returns:
        The handle of the descriptor.
    """
    result = build.handle("tensormap")
    build.Bind(T.tvm_stack_alloca("tensormap", 1), var=result)
    rank = len(shape)
    build.evaluate(
        T.call_packed(
            "runtime.cuTensorMapEncodeTiled",
            result,
            dtype,
            rank,
            getattr(buffer, "data", buffer),
            *shape,
            *strides,
            *box,
            *(steps or (1,) * rank),
            0,
            swizzle,
            promotion,
            0,
        )
    )
    return result


def tma_load(
    target: Expr, descriptor: Expr, start: Sequence[Expr | int], bar: Expr, mask: Expr | int = 0
) -> None:
    """Emit a TMA load of a box; a nonzero ``mask`` multicasts it to these blocks of the cluster."""
    shared = not isinstance(mask, int) or mask != 0
    name = _TMA_LOAD.format(len(start)) + (".multicast::cluster" if shared else "")
    extra = [T.cast(mask, "uint16")] if shared else []
    build.evaluate(T.ptx[name](target, T.address_of(descriptor), *start, bar, *extra))


def tma_store(descriptor: Expr, start: Sequence[Expr | int], source: Expr) -> None:
    """Emit a TMA store of a box."""
    build.evaluate(T.ptx[_TMA_STORE.format(len(start))](T.address_of(descriptor), *start, source))
