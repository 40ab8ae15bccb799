"""Several batch sizes in one GPU library: ``python -m benchmarks.cuda_sizes [--network NAME]``.

Each size is checked against PyTorch in float32, and timed in turns with a library of that size
alone. The bytes of the library are compared with a library of its largest size alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.cuda_networks import NETWORKS, Network, load_network, lower_network
from benchmarks.cuda_timing import burst_timer, error_of, tensor_of
from tvmopt.build import SizeModule, build_library
from tvmopt.device.target import resolve_target

_ROUNDS = 9


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="minilm-32-float16", choices=sorted(NETWORKS))
    parser.add_argument("--sizes", default="32,8,1", help="batch sizes, the largest first")
    given = parser.parse_args(arguments)
    target = resolve_target("cuda")
    network = NETWORKS[given.network]
    batches = [int(size) for size in given.sizes.split(",")]
    sizes = [dataclasses.replace(network, shape=(b, *network.shape[1:])) for b in batches]
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        lowered = [lower_network(size, target) for size in sizes]
        start = time.perf_counter()
        library = build_library(
            lowered[0], target, Path(scratch) / "all.so",
            other_sizes=[SizeModule(mod) for mod in lowered[1:]],
        )  # fmt: skip
        seconds, alone_s = time.perf_counter() - start, []
        print(f"{given.network} on {torch.cuda.get_device_name()}", flush=True)
        print("| batch | of several, ms | alone, ms | several / alone | error |")
        print("| --- | --- | --- | --- | --- |")
        bytes_alone = 0
        for number, (size, mod) in enumerate(zip(sizes, lowered, strict=True)):
            start = time.perf_counter()
            alone = build_library(mod, target, Path(scratch) / f"{number}.so")
            alone_s.append(time.perf_counter() - start)
            bytes_alone = bytes_alone or alone.path.stat().st_size
            _row(size, library.path, alone.path, number)
        megabytes = library.path.stat().st_size / 1e6
        print(
            f"library {megabytes:.1f} MB, {megabytes * 1e6 / bytes_alone:.2f} of one; built in "
            f"{seconds:.1f} s, the sizes alone in {', '.join(f'{s:.1f}' for s in alone_s)} s"
        )
    return 0


def _row(size: Network, several: Path, alone: Path, number: int) -> None:
    image = size.example().cuda()
    runs = {
        "several": load_network(str(several), image, number),
        "alone": load_network(str(alone), image),
    }
    expected = size.module().cuda()(image)
    errors = [error_of(torch, tensor_of(torch, run()).float(), expected) for run in runs.values()]
    timers = {name: burst_timer(torch, run) for name, run in runs.items()}
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(_ROUNDS)]
    ms = {name: statistics.median(one[name] for one in rounds) for name in runs}
    ratio = ms["several"] / ms["alone"]
    batch = size.shape[0]
    print(
        f"| {batch} | {ms['several']:.4f} | {ms['alone']:.4f} | {ratio:.3f} | {max(errors):.1e} |",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
