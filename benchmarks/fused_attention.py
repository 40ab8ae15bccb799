"""Encoders on a CPU with attention as one kernel, and as separate operators.

Usage: ``python -m benchmarks.fused_attention [--threads N] [--seconds S]``

Both libraries have top-1 schedules in float32; calls are interleaved. The last column is the time
of separate operators over that of one kernel: above 1, one kernel is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tvm

from benchmarks import report, zoo
from benchmarks.interleave import interleave
from benchmarks.library import library_call
from benchmarks.low_precision import Model, lowered, read

_MINILM = "input_ids:1x{0},attention_mask:1x{0}"
_NETWORKS = {f"minilm, {n} tokens": ("minilm", _MINILM.format(n)) for n in (16, 128, 512)}
_NETWORKS["bert_layer, 128 tokens"] = ("bert_layer", zoo.entry("bert_layer").input_shapes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0, help="timing limit of a network")
    args = parser.parse_args()
    report.print_environment(report.environment(args.threads))
    print("| network | separate, ms | fused, ms | separate / fused |")
    print("|---|---|---|---|")
    for label, (name, shapes) in _NETWORKS.items():
        model = read(zoo.path(name), shapes, args.threads, None)
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            calls = _calls(model, args.threads, Path(scratch))
            times = interleave(calls, time_limit_s=args.seconds)
        ratio = times["separate"].median / times["fused"].median
        print(f"| {label} | {times['separate']} | {times['fused']} | {ratio:.3f} |", flush=True)


def _calls(model: Model, threads: int, folder: Path) -> dict[str, Callable[[], Any]]:
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target

    target = resolve_target("host", threads)
    calls = {}
    for what, around in (("separate", _without_fusion), ("fused", contextlib.nullcontext)):
        with around():
            mod = lowered(model, "float32", target)
        path = folder / f"{what}.so"
        build_library(mod, target, path)
        calls[what] = library_call(path, model.arrays)
    return calls


@contextlib.contextmanager
def _without_fusion() -> Iterator[None]:
    """Lower modules without the pass ``FuseAttention``."""
    nothing = tvm.transform.Sequential([])
    with mock.patch("tvmopt.transform.lower.FuseAttention", lambda kernel: nothing):
        yield


if __name__ == "__main__":
    main()
