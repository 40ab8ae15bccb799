"""Ensembles of trees against ONNX Runtime and other peers: ``python -m benchmarks.trees``.

Regressors of 100 and 500 trees of depth 6 and 10, trained by LightGBM, XGBoost and scikit-learn on
synthetic data, at 1, 100 and 10,000 rows. Peers: ONNX Runtime, the library's own ``predict``,
treelite's GTIL, lleaves. Calls are interleaved; a ratio below 1 means that ours is faster. On a
machine that others use, take one thread and the ratios of least CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.interleave import interleave, short_turns
from benchmarks.report import environment, print_environment
from benchmarks.tree_models import LIBRARIES, TreeModel, sample, tree_model

TREES, DEPTHS, ROWS = (100, 500), (6, 10), (1, 100, 10_000)
_PEERS = ("ort", "library", "GTIL", "lleaves")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="time of each row")
    parser.add_argument("--libraries", nargs="*", default=LIBRARIES, choices=LIBRARIES)
    parser.add_argument("--trees", nargs="*", type=int, default=TREES)
    parser.add_argument("--depths", nargs="*", type=int, default=DEPTHS)
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--lleaves_trees", type=int, default=100, help="of depth 6, to compile")
    parser.add_argument("--models", type=Path, help="folder that keeps the trained models")
    given = parser.parse_args(arguments)
    peers.set_threads(given.threads)
    print_environment(environment(given.threads), needed=("lightgbm", "xgboost", "treelite"))
    print(
        "| model | rows | ours, ms | ONNX Runtime, ms | library, ms | GTIL, ms | lleaves, ms "
        "| ours / ONNX Runtime | ours / best other | CPU time: ours / ONNX Runtime "
        "| CPU time: ours / best other | deviation | compile, s |"
    )
    print("| --- " * 13 + "|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for library in given.libraries:
            for depth in given.depths:
                for trees in given.trees:
                    model = tree_model(
                        library, trees, depth, given.threads, folder, given.lleaves_trees
                    )
                    for rows in given.rows:
                        name = f"{library}, {trees} trees of depth {depth}"
                        _row(name, model, rows, given.threads, given.seconds)
                    for peer, reason in model.left_out.items():
                        print(f"<!-- {name}: no {peer}: {reason} -->", flush=True)
    return 0


def _row(name: str, model: TreeModel, rows: int, threads: int, seconds: float) -> None:
    import tvmopt

    x = sample(rows, 1)[0]
    session = peers.ort_session(model.onnx, threads)
    key = session.get_inputs()[0].name
    start = time.perf_counter()
    ours = tvmopt.compile(model.onnx, {key: x.shape}, threads=threads)
    compile_s = time.perf_counter() - start
    if ours.metadata.segments:
        raise RuntimeError(f"all of {name} must be compiled, but a part runs in ONNX Runtime")
    want = session.run(None, {key: x})[0]
    apart = np.abs(ours(x)[0] - want).max() / np.abs(want).max()
    contenders = {"ours": partial(ours, x), "ort": partial(session.run, None, {key: x})}
    contenders |= {peer: partial(predict, x) for peer, predict in model.peers.items()}
    timings = interleave(contenders, time_limit_s=seconds)
    cells = [str(timings[peer]) if peer in timings else "-" for peer in _PEERS]
    best = min(timings[peer].median for peer in model.peers)
    slowest_s = max(timing.median for timing in timings.values()) / 1e3
    turns = short_turns(contenders, turns=min(100, max(3, int(seconds / slowest_s))))
    cpu = {peer: each.least_cpu for peer, each in turns.items()}
    best_cpu = min(cpu[peer] for peer in model.peers)
    print(
        f"| {name} | {rows} | {timings['ours']} | {' | '.join(cells)} "
        f"| {timings['ours'].median / timings['ort'].median:.2f} "
        f"| {timings['ours'].median / best:.2f} | {cpu['ours'] / cpu['ort']:.2f} "
        f"| {cpu['ours'] / best_cpu:.2f} | {apart:.0e} | {compile_s:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
