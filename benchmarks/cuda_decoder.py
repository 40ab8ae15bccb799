"""Time a decoder step with int4 weights beside the same step in float16, on a Hopper GPU.

Usage, in two steps, so that no time on the GPU is spent on nvcc::

    python -m benchmarks.cuda_decoder build --out DIR [--layers N] [--kv-heads N] [--past N]
    python -m benchmarks.cuda_decoder run --in DIR [--json FILE] [--no-kernels]

``build`` needs nvcc and no GPU: it converts, lowers and schedules the ONNX model of a step like
``tvmopt build`` (top-1 of the cost model), and takes the constants out of the library; they lie
beside it, compressed. ``run`` needs a GPU and no nvcc, no ONNX and no PyTorch. It compares both
versions with a float32 reference of the dequantised weights, times them interleaved as CUDA graphs,
and times each kernel alone: back to back over copies of its arguments that exceed L2.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decoder_sizes import DecoderSizes

_DEVICE = "nvidia-h200"
_VERSIONS = ("float16", "int4")
# Constants of at least so many bytes leave the library.
_LARGE_BYTES = 1 << 16
# Arguments of a kernel are copied until they exceed L2 several times; most copies.
_COLD_BYTES, _MOST_COPIES = 400e6, 64
_CALLS, _ROUNDS = 50, 15


def step(sizes: DecoderSizes, version: str, block: int) -> Any:
    """Return the ONNX model of ``version``."""
    from benchmarks.decoder_model import decoder_step
    from benchmarks.decoder_weights import dense_weight, packed_weight

    def weights(name: str, depth: int, rows: int) -> dict[str, np.ndarray]:
        if version == "int4":
            return packed_weight(name, depth, rows, block)
        return {"w": dense_weight(name, depth, rows, block)}

    return decoder_step(sizes, weights)


def scheduled(model: Any) -> tuple[Any, dict[str, str]]:
    """Return the scheduled module of a model, and the rule that scheduled each kernel.

    Independent elementwise kernels are one launch, as in a library of ``tvmopt build``.
    """
    import tvm

    from tvmopt.build import SizeModule, schedule_size
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import import_onnx, prepare
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.horizontal_fusion import HorizontalFusion
    from tvmopt.transform.lower import lower

    target = resolve_target(_DEVICE)
    converted = convert_module(import_onnx(prepare(model, {}).model), dtype="float16")
    lowered = lower(converted.mod, target.to_tvm())
    made = schedule_size(SizeModule(lowered), target, target.to_tvm(), "default")
    fused = tvm.transform.Sequential([HorizontalFusion()])(made.after)
    kernels = {call["kernel"] for call in kernel_calls(fused)}
    return fused, {name: made.sources.get(name, "horizontal fusion") for name in kernels}


def without_constants(mod: Any) -> tuple[Any, list[np.ndarray]]:
    """Return the module with large constants of ``main`` as further inputs, and their values."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    values: list[np.ndarray] = []
    inputs: list[relax.Var] = []

    @mutator
    class Lift(PyExprMutator):
        def visit_generic_const_(self, op: Any) -> Any:
            array = op.value.numpy()
            if array.nbytes < _LARGE_BYTES:
                return op
            values.append(array)
            inputs.append(relax.Var(f"constant{len(inputs)}", op.ty))
            return inputs[-1]

    main = mod["main"]
    body = Lift(mod).visit_expr(main.body)
    lifted = relax.Function([*main.params, *inputs], body, main.ret_ty, main.is_pure, main.attrs)
    lifted = lifted.with_attr("num_input", len(lifted.params))
    out = mod.clone()
    out["main"] = lifted
    return out, values


def kernel_calls(mod: Any) -> list[dict[str, Any]]:
    """Return name and arguments (shape, dtype) of each kernel call of ``main``, in order."""
    from tvm import relax

    calls = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir":
                func = mod[call.args[0]]
                arguments = [([int(e) for e in p.shape], str(p.dtype)) for p in func.params]
                calls.append({"kernel": call.args[0].name_hint, "arguments": arguments})
    return calls


def build(sizes: DecoderSizes, block: int, folder: Path) -> None:
    """Build both versions into ``folder``."""
    import dataclasses

    from benchmarks.decoder_weights import inputs_of, reference, write_constants
    from tvmopt.codegen import code_generator
    from tvmopt.device.target import resolve_target

    folder.mkdir(parents=True, exist_ok=True)
    target = resolve_target(_DEVICE)
    index: dict[str, Any] = {"sizes": dataclasses.asdict(sizes), "block": block}
    for version in _VERSIONS:
        mod, sources = scheduled(step(sizes, version, block))
        mod, constants = without_constants(mod)
        code_generator(target, target.to_tvm(), True).compile(mod, folder / f"{version}.so")
        write_constants(folder / f"{version}.npz", constants)
        calls = kernel_calls(mod)
        index[version] = {"sources": sources, "calls": calls}
        families = Counter(sources[call["kernel"]] for call in calls)
        print(f"{version}: {len(calls)} launches: {dict(families)}", flush=True)
    expected = reference(sizes, inputs_of(sizes), block)
    np.save(folder / "expected.npy", expected)
    (folder / "index.json").write_text(json.dumps(index, indent=1))
    total = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{total / 1e6:.1f} MB in {folder}")


# -- on the GPU --------------------------------------------------------------------------------


def load(version: str, folder: Path, inputs: Sequence[np.ndarray]) -> Any:
    """Return the recorded run of a version."""
    import tvm

    from benchmarks.decoder_weights import read_constants
    from tvmopt.runtime.library import open_library
    from tvmopt.runtime.network import network

    device = tvm.cuda()
    given = [*inputs, *read_constants(folder / f"{version}.npz")]
    executor = open_library(
        str((folder / f"{version}.so").resolve()), threads=0, native=False, device=device
    )
    tensors = [tvm.runtime.tensor(array, device) for array in given]
    return network(executor, tensors, on_gpu=True)


def kernels_of(path: Path) -> Callable[[str], Any]:
    """Return a function that returns a kernel of a network's library by name."""
    import tvm

    library = tvm.runtime.load_module(str(path.resolve()))
    return lambda name: library.get_function(name, query_imports=True)


def kernel_seconds(kernel: Any, call: dict[str, Any]) -> float:
    """Return the seconds of a kernel, launched back to back on arguments that are not in L2."""
    import tvm

    from tvmopt.device.cuda_graph import Stream

    rng = np.random.default_rng(0)
    arrays = []
    for shape, dtype in call["arguments"]:
        if dtype.startswith("float"):
            arrays.append(rng.standard_normal(shape, "float32").astype(dtype))
        else:
            arrays.append(np.zeros(shape, dtype))
    size = sum(array.nbytes for array in arrays)
    copies = min(_MOST_COPIES, max(2, math.ceil(_COLD_BYTES / size)))
    sets = [[tvm.runtime.tensor(a, tvm.cuda()) for a in arrays] for _ in range(copies)]
    stream = Stream()

    def launch() -> None:
        for one in sets:
            kernel(*one)

    with stream.launching():
        launch()
    stream.wait()
    play = stream.record(launch)
    stream.seconds(play)
    return min(stream.seconds(play) for _ in range(5)) / copies


def run(folder: Path, json_file: Path | None, kernels: bool) -> int:
    """Check and time both versions; return the number of wrong ones."""
    from benchmarks.decoder_weights import inputs_of

    index = json.loads((folder / "index.json").read_text())
    sizes = DecoderSizes(**index["sizes"])
    inputs = list(inputs_of(sizes).values())
    expected = np.load(folder / "expected.npy")
    runs, errors = {}, {}
    for version in _VERSIONS:
        runs[version] = load(version, folder, inputs)
        got = runs[version]()[0].numpy().astype("float32").reshape(-1)
        errors[version] = float(np.abs(got - expected).max() / np.abs(expected).max())
    times: dict[str, list[float]] = {version: [] for version in _VERSIONS}
    for turn in range(_ROUNDS + 1):
        for version in _VERSIONS if turn % 2 else _VERSIONS[::-1]:
            seconds = runs[version].seconds(_CALLS)
            if turn:
                times[version].append(seconds * 1e6)
    ratios = [a / b for a, b in zip(times["float16"], times["int4"], strict=True)]
    print(f"{sizes}, blocks of {index['block']}")
    for version in _VERSIONS:
        us = times[version]
        print(
            f"{version}: median {statistics.median(us):.1f} us ({min(us):.1f} to {max(us):.1f}), "
            f"{len(index[version]['calls'])} launches, error {errors[version]:.1e} of the largest"
        )
    print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    found: dict[str, Any] = {"sizes": index["sizes"], "us": times, "errors": errors}
    for version in _VERSIONS if kernels else ():
        found[f"{version} kernels"] = _breakdown(version, folder, index[version])
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1))
    return sum(not error < 0.02 for error in errors.values())


def _breakdown(version: str, folder: Path, built: dict[str, Any]) -> list[dict[str, Any]]:
    """Print and return a row for each kernel: launches, microseconds, family."""
    counts = Counter(call["kernel"] for call in built["calls"])
    first = {call["kernel"]: call for call in reversed(built["calls"])}
    rows = []
    library = kernels_of(folder / f"{version}.so")
    for name, count in counts.items():
        us = kernel_seconds(library(name), first[name]) * 1e6
        rows.append({"kernel": name, "launches": count, "us": us, "by": built["sources"][name]})
    print(f"{version}: {sum(r['launches'] * r['us'] for r in rows):.1f} us of kernels alone")
    for row in sorted(rows, key=lambda r: -r["launches"] * r["us"]):
        print(f"  {row['launches']} x {row['us']:6.2f} us  {row['by']}  {row['kernel'][:90]}")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build")
    one.add_argument("--out", type=Path, required=True)
    defaults = DecoderSizes()
    for field in DecoderSizes.__dataclass_fields__:
        name = f"--{field.replace('_', '-')}"
        one.add_argument(name, type=int, default=getattr(defaults, field), dest=field)
    one.add_argument("--block", type=int, default=128)
    two = commands.add_parser("run")
    two.add_argument("--in", dest="folder", type=Path, required=True)
    two.add_argument("--json", type=Path)
    two.add_argument("--no-kernels", action="store_true")
    given = parser.parse_args(arguments)
    if given.command == "build":
        sizes = DecoderSizes(**{f: getattr(given, f) for f in DecoderSizes.__dataclass_fields__})
        build(sizes, given.block, given.out)
        return 0
    return run(given.folder, given.json, not given.no_kernels)


if __name__ == "__main__":
    sys.exit(main())
