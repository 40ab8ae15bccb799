"""Feed-forward networks of a decoder step, with packed weights, and the kernels they lower to."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.transform.packed_weight import PackedWeight

op = relax.op
K = 512


def packed(
    seed: int,
    count: int,
    bits: int = 4,
    block: int = 32,
    zero: float | None = 8.0,
    depth: int = K,
    dtype: str = "float16",
) -> PackedWeight:
    """Return a weight (``depth``, ``count``) with random values and scales."""
    rng = np.random.default_rng(seed)
    blocks = depth // block
    values = rng.integers(0, 256, (count, depth * bits // 8), dtype=np.uint8)
    zeros = np.full((1, 1), zero) if zero is not None else rng.uniform(0, 15, (count, blocks))
    return PackedWeight(
        values.view("<u4") if bits == 4 else values,
        rng.uniform(0.01, 0.02, (count, blocks)).astype(dtype),
        zeros.astype("float32"),
    )


def rms_norm(emit, x):
    """RMSNorm with factors, in float32; the result is float16."""
    wide = emit(op.astype(x, "float32")) if str(x.ty.dtype) != "float32" else x
    mean = emit(op.mean(emit(op.multiply(wide, wide)), [-1], keepdims=True))
    root = emit(op.sqrt(emit(op.add(mean, relax.const(np.float32(1e-3))))))
    factors = relax.const(np.linspace(0.5, 1.5, int(x.ty.shape[-1])).astype("float32"))
    return emit(op.astype(emit(op.multiply(emit(op.divide(wide, root)), factors)), "float16"))


def network(
    relax_main,
    rows=1,
    dtype="float16",
    weights=None,
    *,
    gated=True,
    down=True,
    read_again=False,
    gate_is_read=False,
    layers=1,
):
    """RMSNorm, gate and up, and down; float16 (or float32) between layers."""

    def body(emit, x):
        further = []
        for _ in range(layers):
            normed = rms_norm(emit, x)
            used = weights or ([packed(0, 64), packed(1, 64)] if gated else [packed(0, 64)])
            values = [
                emit(op.matmul(normed, emit(weight.call()), out_dtype="float32")) for weight in used
            ]
            if not gated:
                return values[0] if len(values) == 1 else emit(op.concat(values, -1))
            gate, up = values
            silu = emit(op.multiply(gate, emit(op.sigmoid(gate))))
            x = emit(op.astype(emit(op.multiply(silu, up)), "float16"))
            further += [normed] * read_again + [gate] * gate_is_read
            if down:
                weight = emit(packed(2, K, depth=64).call())
                x = emit(op.matmul(x, weight, out_dtype="float32"))
                x = emit(op.astype(x, "float16")) if dtype == "float16" else x
        return relax.Tuple([x, *further]) if further else x

    return relax_main(body, x=((1, rows, K), dtype))


def names(lowered) -> list[str]:
    """Return the names of the kernels of ``main``, in order."""
    calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings]
    return [
        call.args[0].name_hint
        for call in calls
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir"
    ]
