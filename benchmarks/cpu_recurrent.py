"""LSTM, GRU and RNN layers against ONNX Runtime: ``python -m benchmarks.cpu_recurrent``.

Sequences of 100 steps, batch 1, by default schedules, float32; the input has as many features as
there are hidden units. Calls are interleaved; a ratio below 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import peers
from benchmarks.interleave import interleave
from benchmarks.report import environment, print_environment

STEPS, BATCH = 100, 1
HIDDEN = (128, 256, 512)
# Cell, attributes, name in the table.
LAYERS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("LSTM", {}, "LSTM"),
    ("GRU", {"linear_before_reset": 1}, "GRU, late reset"),
    ("GRU", {"linear_before_reset": 0}, "GRU"),
    ("RNN", {}, "RNN"),
)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(cell: str, hidden: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    """Return a model of one layer with random weights."""
    rng = np.random.default_rng(0)
    rows = GATES[cell] * hidden

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype("float32")

    weights = {"w": drawn(1, rows, hidden), "r": drawn(1, rows, hidden), "b": drawn(1, 2 * rows)}
    node = helper.make_node(
        cell, ["x", "w", "r", "b"], ["y"], name="layer", hidden_size=hidden, **attributes
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, BATCH, hidden))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    import tvmopt

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="time of each row")
    given = parser.parse_args(arguments)
    peers.set_threads(given.threads)
    print_environment(environment(given.threads), needed=())
    print("| layer | hidden | ours, ms | ONNX Runtime, ms | ours / ONNX Runtime | deviation |")
    print("| --- | --- | --- | --- | --- | --- |")
    for cell, attributes, name in LAYERS:
        for hidden in HIDDEN:
            model = layer(cell, hidden, attributes)
            session = peers.ort_session(model, given.threads)
            ours = tvmopt.compile(model, threads=given.threads)
            x = np.random.default_rng(1).standard_normal((STEPS, BATCH, hidden))
            x = x.astype("float32")
            apart = np.abs(ours(x)[0] - session.run(None, {"x": x})[0]).max()
            timings = interleave(
                {
                    "ours": partial(ours, x),
                    "ort": partial(session.run, None, {"x": x}),
                },
                time_limit_s=given.seconds,
            )
            ratio = timings["ours"].median / timings["ort"].median
            print(
                f"| {name} | {hidden} | {timings['ours']} | {timings['ort']} | {ratio:.2f} "
                f"| {apart:.1e} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
