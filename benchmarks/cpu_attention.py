"""Attention's GEMMs on one thread: B packed at every call, and read in place.

``python -m benchmarks.cpu_attention [--rounds N]`` prints one table. Of each family the
configuration with the fewest predicted cycles is timed; calls are interleaved.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

# Heads, rows, K, columns: Q K^T and P V of MiniLM and of BERT-base, 128 and 512 tokens.
_SHAPES = (
    (12, 128, 32, 128), (12, 128, 128, 32), (12, 128, 64, 128), (12, 128, 128, 64),
    (12, 512, 64, 512), (12, 512, 512, 64),
)  # fmt: skip
_NUMBER = 10


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print("| GEMM | packed us | in place us | in place/packed |")
    print("|---|---|---|---|")
    for shape in _SHAPES:
        us = measured(shape, rounds)
        packed, place = us["register_tile"], us["batched_gemm"]
        print(
            f"| {'x'.join(map(str, shape))} | {packed:.1f} | {place:.1f} | {place / packed:.3f} |"
        )


def measured(shape: tuple[int, int, int, int], rounds: int) -> dict[str, float]:
    """Return the lower quartile of each family's kernel, in microseconds."""
    import numpy as np
    import tvm
    from tvm import relax, tirx

    from tvmopt.device.target import resolve_target
    from tvmopt.kernels.emit import emit_kernel
    from tvmopt.kernels.policies import DefaultPolicy
    from tvmopt.transform.lower import lower

    heads, rows, depth, columns = shape
    spec = resolve_target("host", 1)
    builder = relax.BlockBuilder()
    shapes = (heads, rows, depth), (heads, depth, columns)
    operands = [relax.Var(f"x{n}", relax.TensorType(s, "float32")) for n, s in enumerate(shapes)]
    with builder.function("main", operands, {"num_input": 2}):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(relax.op.matmul(*operands)))
        builder.emit_func_output(out)
    functions = lower(builder.get(), spec.to_tvm()).functions_items()
    [func] = [f for _, f in functions if isinstance(f, tirx.PrimFunc)]
    first: dict[str, Any] = {}
    for ranked in DefaultPolicy(func, spec.arch()).ranked:
        if ranked.hint.template in ("register_tile", "batched_gemm"):
            first.setdefault(ranked.hint.template, ranked.hint)
    kernels = {
        name: emit_kernel(func, hint).with_attr("global_symbol", name)
        for name, hint in first.items()
    }
    built = tvm.tirx.build(tvm.IRModule(kernels), target=spec.to_tvm(), pipeline="s_tir")
    rng = np.random.default_rng(0)
    arguments = [
        tvm.runtime.tensor(rng.standard_normal(s).astype("float32"))
        for s in (*shapes, (heads, rows, columns))
    ]
    seconds: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(rounds):
        for name, found in seconds.items():
            timer = built.time_evaluator(name, tvm.cpu(), number=_NUMBER)
            found.append(timer(*arguments).mean)
    return {name: 1e6 * statistics.quantiles(found, n=4)[0] for name, found in seconds.items()}


if __name__ == "__main__":
    main()
