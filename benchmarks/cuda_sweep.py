"""Many configurations of products on a CUDA GPU, to fit the model that ranks them.

``python -m benchmarks.cuda_sweep ROWS --out FILE.jsonl [--count N]`` measures ``count``
configurations of each row of :mod:`.cuda_rows`: those that are modelled best, and others drawn from
what is modelled near them, since a model that is asked for its favourites alone is never proved
wrong. Each row is a line of JSON, written once it is done; :mod:`.cuda_fit` reads them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_rows import row as row_of
from tvmopt.device.cuda import probe
from tvmopt.errors import TvmoptError
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.ranked import Ranked, spread
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measured, Measurer

# Of what is measured: the part that is modelled best, and that in which blocks share a depth.
_BEST, _DIVIDED = 0.6, 0.2
# Times the best's modelled cycles up to which the others are drawn.
_NEAR = 1.8


def drawn(ranked: Sequence[Ranked[Any]], count: int, seed: int) -> list[Ranked[Any]]:
    """``count`` configurations to measure, the one modelled best first.

    Args:
        ranked: All of them, the best first.
        count: How many at most.
        seed: Seed of the draw.
    """
    chosen: list[Any] = spread(ranked, round(count * _BEST))
    rng = random.Random(seed)
    near = [r for r in ranked if r.cycles < _NEAR * ranked[0].cycles and r not in chosen]
    divided = [r for r in near if r.hint.split_k > 1 and not r.hint.option("apart")]
    chosen += rng.sample(divided, min(len(divided), round(count * _DIVIDED)))
    others = [r for r in near if r not in chosen]
    return chosen + rng.sample(others, min(len(others), count - len(chosen)))


def line_of(name: str, chosen: Sequence[Ranked[Any]], measured: Sequence[Measured]) -> str:
    """One row of a sweep, as JSON."""
    points = [
        {"hint": m.hint.to_dict(), "cycles": r.cycles, "us": m.latency_us, "error": m.error}
        for r, m in zip(chosen, measured, strict=True)
    ]
    return json.dumps({"row": name, "points": points})


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_sweep")
    parser.add_argument("rows", nargs="+", help="like matmul_nt-777-1024-4096-float16")
    parser.add_argument("--count", type=int, default=90, help="configurations measured a row")
    parser.add_argument("--out", required=True, help="file to add a line a row to")
    args = parser.parse_args(arguments)
    try:
        arch = probe()
        rows = [row_of(name) for name in args.rows]
    except (TvmoptError, ValueError) as error:
        parser.error(str(error))
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        Measurer(device_of(arch), Path(scratch)) as measurer,
        Path(args.out).open("a") as out,
    ):
        for number, row in enumerate(rows):
            policy = policy_of(row.func, arch)
            if not policy.ranked:
                print(f"{row.name}: no configuration: {policy.reason}", file=sys.stderr)
                continue
            chosen = drawn(policy.ranked, args.count, number)
            hints: list[Any] = [r.hint for r in chosen]
            [found] = measurer.measure([Candidates(row.func, hints)])
            print(line_of(row.name, chosen, found), file=out, flush=True)
            right = [m.latency_us for m in found if m.latency_us is not None]
            best = f"{min(right):.2f} us" if right else "none"
            print(f"{row.name}: {len(right)} of {len(found)} right, best {best}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
