"""Time of tree ensembles with nodes of 8 and of 4 bytes: what half the bytes of a node is worth.

Thresholds are random, rounded to float16, and at most 255 of each feature. Both kinds of nodes hold
the same thresholds, so that the trees answer alike. CPU time of one thread, medians of interleaved
turns::

    python -m benchmarks.tree_node_bytes [--seconds 3]
"""

from __future__ import annotations

import argparse
import itertools
import time
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

import tvmopt
from tvmopt.choices import THRESHOLDS
from tvmopt.exporters.tree_table import Tree, ensemble_attributes
from tvmopt.frontend.converters import trees as trees_converter
from tvmopt.frontend.trees.thresholds import round_thresholds
from tvmopt.kernels.trees.form import choose_words
from tvmopt.kernels.trees.layout import TreeLayout
from tvmopt.kernels.trees.packed import PackedLayout, pack

_FEATURES, _NODE_BYTES, _FEWEST = 30, 8, 5
_TREES, _DEPTHS, _ROWS = (100, 500), (6, 10), (1, 100, 10_000)


def main() -> int:
    """Print one row per ensemble, number of rows and rounding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each row")
    parser.add_argument("--trees", nargs="*", type=int, default=_TREES)
    parser.add_argument("--depths", nargs="*", type=int, default=_DEPTHS)
    parser.add_argument("--rows", nargs="*", type=int, default=_ROWS)
    given = parser.parse_args()
    print(
        "| trees | depth | thresholds | rows | nodes of 8 bytes, MB | 8 bytes, ms | 4 bytes, ms "
        "| 4 / 8 | chosen |"
    )
    print("| --- " * 9 + "|")
    for trees, depth in itertools.product(given.trees, given.depths):
        model = random_trees(trees, depth)
        size = trees * 2 ** (depth + 1) * _NODE_BYTES
        for thresholds, rows in itertools.product(THRESHOLDS[1:], given.rows):
            rounded = round_thresholds(model, thresholds)
            wide_ms, narrow_ms, chosen = _medians(rounded, rows, given.seconds)
            print(
                f"| {trees} | {depth} | {thresholds} | {rows} | {size / 1e6:.2f} | "
                f"{wide_ms:.3f} | {narrow_ms:.3f} | {narrow_ms / wide_ms:.2f} | {chosen} bytes |",
                flush=True,
            )
    return 0


def random_trees(trees: int, depth: int) -> onnx.ModelProto:
    """Return a model of complete trees with random features and thresholds, and one target."""
    random = np.random.default_rng(0)
    own = np.arange(2 ** (depth + 1) - 1)
    leaf = own >= 2**depth - 1
    left = np.where(leaf, 0, 2 * own + 1)
    made = [
        Tree(
            random.integers(0, _FEATURES, len(own)), random.normal(size=len(own)), left, left + 1,
            np.zeros(len(own), bool), leaf, random.normal(size=(len(own), 1)),
        )
        for _ in range(trees)
    ]  # fmt: skip
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml",
        **ensemble_attributes(made, 1, "float32"),
    )  # fmt: skip
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", kind, ["rows", _FEATURES])],
        [helper.make_tensor_value_info("y", kind, ["rows", 1])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _medians(model: onnx.ModelProto, rows: int, seconds: float) -> tuple[float, float, int]:
    """Return the median CPU milliseconds with nodes of 8 and of 4 bytes; which ones are chosen."""
    x = np.random.default_rng(1).normal(size=(rows, _FEATURES)).astype(np.float32)
    compiled = []
    chosen = _NODE_BYTES

    def narrow(layout: TreeLayout) -> TreeLayout:
        nonlocal chosen
        if isinstance(choose_words(layout), PackedLayout):
            chosen = _NODE_BYTES // 2
        packed = pack(layout)
        assert packed is not None
        return packed

    for words in (lambda layout: layout, narrow):
        with mock.patch.object(trees_converter, "choose_words", words):
            compiled.append(tvmopt.compile(model, {"x": x.shape}, threads=1))
    np.testing.assert_array_equal(*(one(x)[0] for one in compiled))
    times: list[list[float]] = [[] for _ in compiled]
    repeats = max(1, int(2e-3 / max(1e-6, _timed(compiled[0], x, 1))))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < _FEWEST:
        for found, one in zip(times, compiled, strict=True):
            found.append(_timed(one, x, repeats))
    wide_ms, narrow_ms = (float(np.median(found)) * 1e3 for found in times)
    return wide_ms, narrow_ms, chosen


def _timed(model: tvmopt.CompiledModel, x: np.ndarray, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        model(x)
    return (time.process_time() - start) / repeats


if __name__ == "__main__":
    raise SystemExit(main())
