"""Measure candidates of a model's kernels on a CPU that has no compiler, and their regret.

Usage:

``python -m benchmarks.cpu_sweep build --out FOLDER --target CPU --models NAME:DTYPE,...
[--kernels N] [--candidates N]`` compiles candidates of the kernels with the most predicted cycles:
one library and one JSON file for each model and dtype.

``python -m benchmarks.cpu_sweep run --in FOLDER --json FILE [--seconds S]`` times them, candidates
of one kernel in turns. It needs only TVM's runtime, NumPy and ml_dtypes. Threads are
``TVM_NUM_THREADS``; set ``TVM_BIND_THREADS=0`` where the process is bound to cores, because TVM
would bind its workers to others.

``python -m benchmarks.cpu_sweep regret --in FOLDER --json FILE`` ranks the candidates by the
present cost model, and prints the time of its choice over that of the fastest: geometric means by
dtype and family.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Seconds of a candidate in one round; rounds. Candidates with the register tile of the first.
_ROUND_S, _ROUNDS, _SAME_TILE = 0.003, 6, 3
_FAMILIES = ("matrix_tile", "register_tile", "window", "depthwise_dot")
# Caches of the measured machine, which its name does not tell: an Emerald Rapids.
_CACHES = {"sapphirerapids": {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "l3_bytes": 300 << 20}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("what", choices=("build", "run", "regret"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--in", dest="folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--target", default="sapphirerapids")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="ppocr_rec:bfloat16")
    parser.add_argument("--kernels", type=int, default=14)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args(arguments)
    if args.what == "build":
        if args.out is None:
            parser.error("build needs --out FOLDER")
        build(args)
    elif args.folder is None or args.json is None:
        parser.error(f"{args.what} needs --in FOLDER and --json FILE")
    elif args.what == "run":
        run(args.folder, args.json, args.seconds)
    else:
        print(regrets(args))
    return 0


def build(args: argparse.Namespace) -> None:
    """Compile candidates of each model; write libraries and descriptions into ``args.out``."""
    import tvm

    from benchmarks import zoo
    from benchmarks.cpu_int8 import read_model
    from benchmarks.cpu_models import ModelFile
    from benchmarks.low_precision import lowered
    from tvmopt.device.target import resolve_target

    target = resolve_target(args.target, args.threads)
    arch = dataclasses.replace(target.arch(), **_CACHES.get(args.target, {}))
    args.out.mkdir(parents=True, exist_ok=True)
    for what in args.models.split(","):
        name, dtype = what.split(":")
        entry = zoo.entry(name)
        model = read_model(ModelFile(name, zoo.path(name), entry.input_shapes, entry), args.threads)
        mod = lowered(model, dtype, target)
        functions, described = _candidates(mod, arch, args.kernels, args.candidates)
        built = tvm.tirx.build(tvm.IRModule(functions), target=target.to_tvm(), pipeline="s_tir")
        built.export_library(str(args.out / f"{what.replace(':', '.')}.so"))
        facts = {"module": tvm.ir.save_json(mod), "candidates": described}
        (args.out / f"{what.replace(':', '.')}.json").write_text(json.dumps(facts))
        print(f"{what}: {len(described)} candidates", flush=True)


def _candidates(
    mod: Any, arch: Any, kernels: int, count: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return functions by symbol, and for each its kernel, configuration and arguments."""
    import tvm

    from tvmopt.kernels.cpu.finish import finish
    from tvmopt.kernels.emit import NotApplicable, emit
    from tvmopt.kernels.policies import DefaultPolicy
    from tvmopt.measure.split import split_packing

    ranked = []
    for var, func in mod.functions_items():
        found = DefaultPolicy(func, arch).ranked if isinstance(func, tvm.tirx.PrimFunc) else []
        if found and found[0].hint.template in _FAMILIES:
            ranked.append((found[0].cycles, var.name_hint, func, found))
    functions: dict[str, Any] = {}
    described: list[dict[str, Any]] = []
    for _, name, func, found in sorted(ranked, key=lambda r: -r[0])[:kernels]:
        for candidate in _drawn(found, count):
            try:
                scheduled = emit(func, candidate.hint).mod["main"]
            except NotApplicable:
                continue
            kernel = split_packing(finish(scheduled, func)).compute
            symbol = f"k{len(described)}"
            functions[symbol] = kernel.with_attr("global_symbol", symbol)
            shapes = [([int(e) for e in p.shape], str(p.dtype)) for p in kernel.params]
            hint = str(candidate.hint)
            described.append({"symbol": symbol, "kernel": name, "hint": hint, "arguments": shapes})
    return functions, described


def _drawn(ranked: Sequence[Any], count: int) -> list[Any]:
    """Return the first two candidates, one of each other register tile, and more of the first's."""
    ranked = [r for r in ranked if r.hint.template in _FAMILIES]
    chosen, tiles = list(ranked[:2]), {_tile(r) for r in ranked[:2]}
    for candidate in ranked[2:]:
        if _tile(candidate) not in tiles and len(chosen) < count - _SAME_TILE:
            tiles.add(_tile(candidate))
            chosen.append(candidate)
    loops = set()
    for candidate in ranked:
        order = (candidate.hint.loop_order, candidate.hint.producer_depth)
        if candidate in chosen or _tile(candidate) != _tile(ranked[0]) or order in loops:
            continue
        if len(chosen) < count:
            loops.add(order)
            chosen.append(candidate)
    return chosen


def _tile(candidate: Any) -> tuple[str, str]:
    return candidate.hint.template, str(candidate.hint.register_tile)


def run(folder: Path, result: Path, seconds: float) -> None:
    """Time the candidates in ``folder``; write microseconds by model, kernel and configuration."""
    import tvm

    from tvmopt import host

    host.request_amx(host.cpu_flags())
    rng, until = np.random.default_rng(0), time.monotonic() + seconds
    rows: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*.json")):
        module = tvm.runtime.load_module(str(path.with_suffix(".so")))
        kernels = collections.defaultdict(list)
        for candidate in json.loads(path.read_text())["candidates"]:
            kernels[candidate["kernel"]].append(candidate)
        for name, candidates in kernels.items():
            if time.monotonic() < until:
                rows[f"{path.stem}/{name}"] = _timed(tvm, module, candidates, rng)
    facts = {"threads": os.environ.get("TVM_NUM_THREADS", ""), "cpu": host.cpu_model()}
    result.write_text(json.dumps(facts | {"us": rows}))
    print(f"{len(rows)} kernels")


def _timed(
    tvm: Any, module: Any, candidates: Sequence[dict[str, Any]], rng: np.random.Generator
) -> dict[str, float]:
    """Return the median microseconds of each candidate; the candidates take turns."""
    calls = []
    for candidate in candidates:
        tensors = [_tensor(tvm, shape, dtype, rng) for shape, dtype in candidate["arguments"]]
        function = module[candidate["symbol"]]
        function(*tensors)
        start = time.perf_counter()
        for _ in range(3):
            function(*tensors)
        count = max(1, int(_ROUND_S * 3 / (time.perf_counter() - start)))
        calls.append((candidate["hint"], function, tensors, count))
    seen: dict[str, list[float]] = {hint: [] for hint, *_ in calls}
    for _ in range(_ROUNDS):
        for hint, function, tensors, count in calls:
            start = time.perf_counter()
            for _ in range(count):
                function(*tensors)
            seen[hint].append((time.perf_counter() - start) / count * 1e6)
    return {hint: statistics.median(times) for hint, times in seen.items()}


def _tensor(tvm: Any, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> Any:
    """Return positive random values; ``uint16`` holds the bits of bfloat16."""
    import ml_dtypes

    if dtype in ("uint8", "int8", "int32"):
        return tvm.runtime.tensor(rng.integers(0, 100, shape).astype(dtype))
    values = rng.uniform(0.1, 1, shape)
    if dtype == "uint16":
        return tvm.runtime.tensor(values.astype(ml_dtypes.bfloat16).view(np.uint16))
    return tvm.runtime.tensor(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def regrets(args: argparse.Namespace) -> str:
    """Return a line for each dtype and family: geometric mean of the regret, and kernels."""
    import tvm

    from tvmopt.device.target import resolve_target
    from tvmopt.kernels.policies import DefaultPolicy

    arch = resolve_target(args.target, args.threads).arch()
    arch = dataclasses.replace(arch, **_CACHES.get(args.target, {}))
    measured, modules = json.loads(args.json.read_text())["us"], {}
    found: dict[str, list[float]] = collections.defaultdict(list)
    for key, times in measured.items():
        model, kernel = key.split("/")
        if model not in modules:
            text = json.loads((args.folder / f"{model}.json").read_text())["module"]
            functions = tvm.ir.load_json(text).functions_items()
            modules[model] = {var.name_hint: func for var, func in functions}
        ranked = DefaultPolicy(modules[model][kernel], arch).ranked
        known = [r for r in ranked if str(r.hint) in times]
        if known:
            regret = times[str(known[0].hint)] / min(times[str(r.hint)] for r in known)
            found[f"{model.split('.')[1]} {known[0].hint.template}"].append(math.log(regret))
    lines = ("| dtype and family | regret | kernels |", "| --- | --- | --- |")
    rows = (f"| {k} | {math.exp(sum(v) / len(v)):.3f} | {len(v)} |" for k, v in found.items())
    return "\n".join((*lines, *rows))


if __name__ == "__main__":
    raise SystemExit(main())
