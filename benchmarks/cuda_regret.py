"""Regret of the CUDA cost models on recorded sweeps, over all kernel families together.

``python -m benchmarks.cuda_regret FILE.jsonl [--gpu NAME]`` reads sweeps of :mod:`.cuda_sweep` and
needs no GPU; ``benchmarks/results/2026-11-28-cuda-sweep.jsonl`` is one of an H200. The regret of a
row is the time of the measured configuration that is ranked first, over the time of the fastest
one. :mod:`.cuda_fit` fits one family; this compares them all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_rows import row as row_of
from benchmarks.interleave import geometric_mean
from benchmarks.report import markdown
from tvmopt.device.cuda import CudaArch
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.families import by_name
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import policy_of


@dataclasses.dataclass(frozen=True)
class RowRegret:
    """Regret of one row.

    Attributes:
        name: Name of the row.
        group: Group of rows with one mean.
        first: The measured configuration that is ranked first.
        fastest: The fastest configuration.
        first_us: Microseconds of ``first``.
        best_us: Microseconds of ``fastest``.
        top_1_measured: Whether ``first`` is the top-1 of the whole ranking.
    """

    name: str
    group: str
    first: str
    fastest: str
    first_us: float
    best_us: float
    top_1_measured: bool

    @property
    def regret(self) -> float:
        """Time of the first over the time of the fastest."""
        return self.first_us / self.best_us


def regrets_of(lines: Iterable[str], arch: CudaArch) -> list[RowRegret]:
    """Return the regret of each row of a sweep.

    Args:
        lines: Lines of JSON, one for each row.
        arch: The GPU to rank for. Configurations that the ranking lacks count only as fastest.
    """
    found = []
    for line in lines:
        data = json.loads(line)
        us = {_hint(p["hint"], arch): p["us"] for p in data["points"] if p["us"]}
        row = row_of(data["row"])
        ranked = [r.hint for r in policy_of(row.func, arch).ranked]
        first = next((hint for hint in ranked if hint in us), None)
        if first is not None:
            fastest = min(us, key=us.__getitem__)
            here = first == ranked[0]
            parts = str(first), str(fastest), us[first], us[fastest]
            found.append(RowRegret(row.name, row.group, *parts, here))
    return found


def _hint(recorded: dict[str, Any], arch: CudaArch) -> Hint:
    """Return a recorded configuration; fields that it lacks have their defaults."""
    config_type = by_name()[recorded["template"]].config_type
    return config_type.from_dict(recorded | {"arch": arch.to_dict()})


def report(regrets: Sequence[RowRegret]) -> str:
    """Return a table of the rows, and the geometric mean of each group."""
    header = ("row", "first us", "best us", "regret", "top-1 measured", "first", "fastest")
    rows = [
        [
            r.name, f"{r.first_us:.2f}", f"{r.best_us:.2f}", f"{r.regret:.3f}",
            "yes" if r.top_1_measured else "no", r.first, r.fastest,
        ]
        for r in regrets
    ]  # fmt: skip
    lines = [markdown(header, rows), ""]
    for group in dict.fromkeys(r.group for r in regrets):
        values = [r.regret for r in regrets if r.group == group]
        mean = geometric_mean(values)
        lines.append(
            f"{group}: geometric mean {mean:.3f} of {len(values)}, worst {max(values):.3f}"
        )
    values = [r.regret for r in regrets]
    lines.append(f"all: geometric mean {geometric_mean(values):.3f}, worst {max(values):.3f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_regret")
    parser.add_argument("files", nargs="+", help="sweeps of cuda_sweep")
    parser.add_argument("--gpu", default="nvidia-h100", choices=GPUS, help="GPU to rank for")
    args = parser.parse_args(arguments)
    regrets = []
    for file in args.files:
        with Path(file).open() as lines:
            regrets += regrets_of(lines, GPUS[args.gpu])
    if not regrets:
        parser.error("the files must hold configurations that the ranking has, but they hold none")
    print(report(regrets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
