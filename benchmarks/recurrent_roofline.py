"""Least time of a recurrent layer on this machine: ``python -m benchmarks.recurrent_roofline``.

A layer of batch 1 is one matmul over all steps and, at each step, one read of the whole recurrent
weight: a step needs the state of the step before, so nothing of a read can be used twice. The table
sets our layer and ONNX Runtime's beside the sum of our matmul alone and of a loop that only reads
as many bytes, each thread its own share, back and forth, without activations and without waiting
for the other threads. :mod:`benchmarks.cpu_recurrent` has the same layers and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import peers
from benchmarks.cpu_recurrent import HIDDEN
from benchmarks.interleave import interleave
from benchmarks.options import begin_table, table_parser
from benchmarks.recurrent_layers import STEPS, layers, model

# float32 values that one iteration of the reading loop sums: eight vectors of AVX-512.
_WIDTH = 128


def reads(threads: int, values: int, passes: int) -> Callable[[], Any]:
    """Return a call that reads ``values`` float32 a thread, ``passes`` times, back and forth."""
    import tvm
    from tvm.script import tirx as T  # noqa: N812

    from tvmopt.device.target import resolve_target

    rows = values // _WIDTH

    @T.prim_func(s_tir=True)
    def read(
        data: T.Buffer((threads, rows, _WIDTH), "float32"),  # type: ignore[valid-type]
        out: T.Buffer((threads, _WIDTH), "float32"),  # type: ignore[valid-type]
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        for thread in T.parallel(threads):
            total = T.alloc_buffer((_WIDTH,), "float32", scope="local")
            for i in T.vectorized(_WIDTH):
                total[i] = T.float32(0)
            for turn in T.serial(passes):
                for k in T.serial(rows):
                    for i in T.vectorized(_WIDTH):
                        total[i] = (
                            total[i] + data[thread, T.Select(turn % 2 == 1, rows - 1 - k, k), i]
                        )
            for i in T.vectorized(_WIDTH):
                out[thread, i] = total[i]

    function = read.with_attr("global_symbol", "read")
    built = tvm.tirx.build(
        tvm.IRModule({"read": function}), target=resolve_target().to_tvm(), pipeline="s_tir"
    )
    data = tvm.runtime.tensor(np.zeros((threads, rows, _WIDTH), "float32"))
    out = tvm.runtime.tensor(np.zeros((threads, _WIDTH), "float32"))
    return partial(built["read"], data, out)


def matmul(steps: int, features: int, rows: int) -> onnx.ModelProto:
    """Return a model of the matmul of a layer's input, (steps, features) x (features, rows)."""
    weight = np.random.default_rng(0).standard_normal((features, rows)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, features))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    import tvmopt

    parser = table_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="time of each row")
    given = begin_table(parser, arguments)
    print(
        "| layer | hidden | ours, ms | ONNX Runtime, ms | matmul, ms | reads, ms | reads, GB/s "
        "| ours / bound | bound / ONNX Runtime |"
    )
    print("| --- " * 9 + "|")
    for layer in layers(HIDDEN):
        rows, hidden = layer.rows, layer.hidden
        session = peers.ort_session(model(layer), given.threads)
        ours = tvmopt.compile(model(layer), threads=given.threads)
        product = tvmopt.compile(matmul(STEPS, hidden, rows), threads=given.threads)
        x = layer.input()
        timings = interleave(
            {
                "ours": partial(ours, x),
                "ort": partial(session.run, None, {"x": x}),
                "matmul": partial(product, x[:, 0]),
                "reads": reads(given.threads, rows * hidden // given.threads, STEPS),
            },
            time_limit_s=given.seconds,
        )
        ms = {key: timing.median for key, timing in timings.items()}
        bound = ms["matmul"] + ms["reads"]
        rate = 4 * rows * hidden * STEPS / ms["reads"] / 1e6
        print(
            f"| {layer.name} | {hidden} | {timings['ours']} | {timings['ort']} "
            f"| {timings['matmul']} | {timings['reads']} | {rate:.0f} "
            f"| {ms['ours'] / bound:.2f} | {bound / ms['ort']:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
