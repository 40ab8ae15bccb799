"""The best schedule of an operator alone is far from the best of its fused function.

The workload is the last expansion of int8 ResNet-50, 7 x 7 x 512 -> 2048, with requantize and
residual. Alone it stores int32, and tiles of 5, 6, 12 or 14 rows are fastest. Fused, a tile that
does not divide the 49 rows pays for it in the epilogue. Source: apache/tvm pull request 10650.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.kernels.cpu.intrinsics import find_dot
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measurer
from tvmopt.transform.lower import lower
from tvmopt.tune import extract_tasks
from tvmopt.tune.operator import operator_function

from .models import ARCH, TARGET

ROWS, DEPTH, OUTPUTS = 49, 512, 2048
DOT = find_dot(ARCH, "uint8", "int8")
# Tile of rows and columns, and the K step between stores of the accumulators to memory.
TILES = (((6, 64), 128), ((5, 64), 128), ((6, 64), 0), ((12, 32), 0), ((14, 32), 0), ((7, 32), 0))


def expansion() -> tvm.IRModule:
    """Build the workload from Relax operators."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 7, 7, DEPTH), "uint8"))
    residual = relax.Var("residual", relax.TensorType((1, 7, 7, OUTPUTS), "uint8"))
    weight = rng.integers(-127, 128, (1, 1, DEPTH, OUTPUTS), "int8")
    bias = rng.integers(-999, 999, (1, 1, 1, OUTPUTS), "int32")
    scale = rng.uniform(1e-4, 2e-4, (1, 1, 1, OUTPUTS)).astype("float32")

    def to_byte(value: relax.Expr) -> relax.Expr:
        return relax.op.astype(relax.op.clip(relax.op.round(value), 0, 255), "uint8")

    def to_float(value: relax.Expr, step: float) -> relax.Expr:
        return relax.op.multiply(relax.op.astype(value, "float32"), relax.const(step, "float32"))

    with builder.function("main", [x, residual]):
        with builder.dataflow():
            y = relax.op.nn.conv2d(
                x, relax.const(weight), data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32"
            )
            y = relax.op.astype(relax.op.add(y, relax.const(bias)), "float32")
            y = to_byte(relax.op.add(relax.op.multiply(y, relax.const(scale)), relax.const(9.0)))
            both = relax.op.add(to_float(y, 0.7), to_float(residual, 0.4))
            out = builder.emit_output(builder.normalize(to_byte(both)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.alone
@pytest.mark.skipif(
    DOT is None or DOT.lanes != 16, reason="the kernel's inversion needs AVX512-VNNI"
)
@pytest.mark.skipif(
    ARCH.mcpu.startswith("znver"),
    reason="a Zen 4 has one dot product of 512 bits per cycle, which hides the epilogue",
)
def test_the_best_of_the_operator_is_far_from_the_best_of_the_subgraph(tmp_path) -> None:
    assert DOT is not None
    [task] = extract_tasks(lower(expansion(), TARGET), TARGET)
    fused = task.mod["main"]
    operator = operator_function(fused)
    assert operator is not None
    assert str(operator.params[-1].dtype) == "int32"
    assert str(fused.params[-1].dtype) == "uint8"
    hints = [
        RegisterTileConfig(
            "register_tile", ARCH, register_tile=block, k_block=step,
            loops_in_k_block=int(step > 0), loop_order=(1, 0), parallel_loops=1,
            packing="prepacked", intrinsic=DOT.name, prefetch_bytes=2048,
        )
        for block, step in TILES
    ]  # fmt: skip
    with Measurer(device_of(ARCH), tmp_path) as measurer:
        alone, within = measurer.measure(
            [Candidates(func, hints, weight_bytes=25_000_000) for func in (operator, fused)]
        )
    assert not [m.error for m in (*alone, *within) if m.error]
    alone_us, within_us = ([m.latency_us for m in found] for found in (alone, within))
    picked = within_us[int(np.argmin(alone_us))]
    assert picked >= 1.15 * min(within_us), (alone_us, within_us)
