"""Fit constants of a CUDA family's cost model to a sweep, and report how well it ranks.

``python -m benchmarks.cuda_fit FILE.jsonl [--family NAME] [--constants NAMES]`` reads a sweep of
:mod:`.cuda_sweep`. Only the order within a row counts, so each row has its own scale, which is
drawn to 1; points near a row's best weigh most. The script prints the regret before and after, and
the fitted constants. A person writes them into
:class:`tvmopt.kernels.cuda.hopper.cost_constants.HopperCosts`; constants of any other family are in
:class:`tvmopt.device.cuda_costs.CudaCosts`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import least_squares

from benchmarks.cuda_rows import row as row_of
from tvmopt.device.cuda_costs import CudaCosts
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.config import GEMM, HopperConfig
from tvmopt.kernels.cuda.hopper.cost import gemm_cost
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS, HopperCosts
from tvmopt.kernels.families import by_name
from tvmopt.kernels.family import Family
from tvmopt.kernels.workload import Refusal, Workload

_Costs = TypeVar("_Costs", bound=HopperCosts | CudaCosts)
#: Constants of ``hopper_gemm`` that are fitted by default.
CONSTANTS = (
    "l2_bytes_per_cycle_per_sm",
    "pitch_64_slowdown", "pitch_32_slowdown", "pitch_16_slowdown",
    "multicast_pitch_32_slowdown", "multicast_pitch_16_slowdown",
    "arrival_cycles_per_line", "arrival_slowdown_exponent", "load_latency_cycles",
    "tma_store_cycles", "smem_store_cycles", "tma_store_unaligned_slowdown",
    "tma_store_one_buffer_slowdown", "tile_switch_cycles", "block_start_cycles",
    "cluster_split_k_cycles", "dsmem_cycles_per_partial_sum", "cluster_launch_cycles",
)  # fmt: skip
# How fast a point's weight falls with its distance from the best, and the least weight.
_FALL, _LEAST = 4.0, 0.05
# How firmly a row's scale, and the constants, are held where they were.
_SCALE, _HOLD = 0.25, 0.02


@dataclasses.dataclass(frozen=True)
class Points:
    """The measured configurations of one function.

    Attributes:
        name: The row's name.
        family: The family of the configurations.
        form: The family's normalised form of the function.
        configs: The configurations.
        us: Microseconds of each.
    """

    name: str
    family: Family[Any, Any]
    form: Any
    configs: list[Any]
    us: np.ndarray

    def cycles(self, costs: HopperCosts | CudaCosts) -> np.ndarray:
        """Return the predicted cycles of each configuration."""
        if isinstance(costs, HopperCosts):
            return np.array([gemm_cost(self.form, c, costs).cycles for c in self.configs])
        arch = dataclasses.replace(self.configs[0].arch, costs=costs)
        predicted = {r.hint: r.cycles for r in self.family.rank(self.form, arch)}
        return np.array([predicted[config] for config in self.configs])

    def regret(self, costs: HopperCosts | CudaCosts) -> float:
        """Return the time of the model's top-1 over that of the best configuration."""
        return float(self.us[int(np.argmin(self.cycles(costs)))] / self.us.min())


def points_of(lines: Iterable[str], name: str = GEMM) -> list[Points]:
    """Return the points of a sweep that are of the family ``name``."""
    family = by_name()[name]
    found = []
    for line in lines:
        data = json.loads(line)
        right = [p for p in data["points"] if p["us"] and p["hint"]["template"] == name]
        if not right:
            continue
        # A recorded sweep names the GPU once a row, not in every configuration.
        shared = {"arch": data["arch"]} if "arch" in data else {}
        configs = [family.config_type.from_dict(p["hint"] | shared) for p in right]
        form = family.match(Workload(row_of(data["row"]).func), configs[0].arch)
        if not isinstance(form, Refusal):
            us = np.array([p["us"] for p in right])
            found.append(Points(data["row"], family, form, configs, us))
    return found


def fit(rows: Sequence[Points], names: Sequence[str], start: _Costs) -> _Costs:
    """Return the constants that order the points of each row best.

    Args:
        rows: The points.
        names: The constants to fit; others keep their values.
        start: The costs to start at.
    """
    logs_at_start = np.log([getattr(start, name) for name in names])

    def costs_of(logs: np.ndarray) -> _Costs:
        values: dict[str, Any] = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return dataclasses.replace(start, **values)

    def errors(logs: np.ndarray) -> np.ndarray:
        costs = costs_of(logs)
        parts = [_HOLD * (logs - logs_at_start)]
        for row in rows:
            weight = np.exp(-_FALL * (row.us / row.us.min() - 1.0)) + _LEAST
            weight /= weight.sum()
            clock_mhz = 1e3 * row.configs[0].arch.clock_ghz
            ratio = np.log(row.cycles(costs) / row.us / clock_mhz)
            scale = float((weight * ratio).sum())
            parts += [np.sqrt(weight) * (ratio - scale), np.array([_SCALE * scale])]
        return np.concatenate(parts)

    best = least_squares(
        errors, logs_at_start, loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=30
    )
    return costs_of(best.x)


def report(rows: Sequence[Points], costs: HopperCosts | CudaCosts) -> str:
    """Return the regret of each row, and of all, as text."""
    regrets = {row.name: row.regret(costs) for row in rows}
    mean = math.exp(statistics.fmean(map(math.log, regrets.values())))
    lines = [f"{name}: {regret:.3f}" for name, regret in regrets.items()]
    return "\n".join([*lines, f"geometric mean {mean:.3f}, worst {max(regrets.values()):.3f}"])


def _families() -> list[str]:
    """Return the CUDA families whose constants can be fitted."""
    types = {name: family.config_type for name, family in by_name().items()}
    others = [n for n, t in types.items() if issubclass(t, CudaHint)]
    return [GEMM, *(n for n in others if not issubclass(types[n], HopperConfig))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_fit")
    parser.add_argument("files", nargs="+", help="sweeps of cuda_sweep")
    parser.add_argument("--family", default=GEMM, choices=_families(), help="whose cost model")
    parser.add_argument("--constants", default=",".join(CONSTANTS), help="names, comma-separated")
    args = parser.parse_args(arguments)
    names = args.constants.split(",")
    before = COSTS if args.family == GEMM else CudaCosts()
    known = {field.name for field in dataclasses.fields(before)}
    if unknown := [name for name in names if name not in known]:
        kind = type(before).__name__
        parser.error(f"constants must be fields of {kind}, but got {unknown[0]!r}")
    rows = []
    for file in args.files:
        with Path(file).open() as lines:
            rows += points_of(lines, args.family)
    if not rows:
        parser.error(f"the files must hold configurations of {args.family}, but they hold none")
    print(report(rows, before))
    costs = fit(rows, names, before)
    print(report(rows, costs))
    print("\n".join(f"{name} = {getattr(costs, name):.4g}" for name in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
