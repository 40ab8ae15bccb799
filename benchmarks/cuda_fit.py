"""Fit constants of the Hopper model to a sweep, and say how well it ranks.

``python -m benchmarks.cuda_fit FILE.jsonl [--constants NAMES]`` reads what a sweep measured
(:mod:`.cuda_sweep`). Only the order within a row counts, so each row has a scale of its own, which
is drawn to 1; points near a row's best weigh most. Prints the regret before and after, and the
constants; a person writes them into :mod:`tvmopt.kernels.cuda.hopper.cost`.
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

import numpy as np
from scipy.optimize import least_squares

from benchmarks.cuda_rows import row as row_of
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper import cost as model
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.hints import GEMM, config_of
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

#: What is fitted unless others are named.
CONSTANTS = (
    "_L2", "_PITCH_64", "_PITCH_32", "_PITCH_16", "_CAST_32", "_CAST_16",
    "_ARRIVE", "_ARRIVE_NORM", "_LATENCY", "_STORE", "_STORE_STAGED", "_STORE_ODD",
    "_ONE_BUFFER", "_TURN", "_REFILL", "_MEET", "_SENT", "_CLUSTER",
)  # fmt: skip
# How fast a point's weight falls with its distance from the best, and the least weight.
_FALL, _LEAST = 4.0, 0.05
# How firmly a row's scale, and the constants, are held where they were.
_SCALE, _HOLD = 0.25, 0.02


@dataclasses.dataclass(frozen=True)
class Points:
    """The measured configurations of one product.

    Attributes:
        name: The row's name.
        problem: The product.
        configs: The configurations.
        us: Microseconds of each.
        arch: The GPU.
    """

    name: str
    problem: GemmProblem
    configs: list[Config]
    us: np.ndarray
    arch: CudaArch

    def cycles(self) -> np.ndarray:
        """What the model expects of each."""
        return np.array([model.gemm_cost(self.problem, c, self.arch).cycles for c in self.configs])

    @property
    def regret(self) -> float:
        """How many times the best's time the one takes that the model would choose."""
        return float(self.us[int(np.argmin(self.cycles()))] / self.us.min())


def points_of(lines: Iterable[str]) -> list[Points]:
    """What a sweep measured of ``hopper_gemm``; other templates have other models."""
    found = []
    for line in lines:
        data = json.loads(line)
        matched = match(row_of(data["row"]).func)
        right = [p for p in data["points"] if p["us"] and p["hint"]["template"] == GEMM]
        if isinstance(matched, str) or not isinstance(matched.problem, GemmProblem) or not right:
            continue
        hints = [CudaHint.from_dict(p["hint"]) for p in right]
        us = np.array([p["us"] for p in right])
        configs = [config_of(hint) for hint in hints]
        found.append(Points(data["row"], matched.problem, configs, us, hints[0].arch))
    return found


def fit(rows: Sequence[Points], names: Sequence[str]) -> dict[str, float]:
    """The constants that order the points of each row best; they are set in the model."""
    start = np.log([getattr(model, name) for name in names])

    def errors(logs: np.ndarray) -> np.ndarray:
        _set(names, logs)
        parts = [_HOLD * (logs - start)]
        for row in rows:
            weight = np.exp(-_FALL * (row.us / row.us.min() - 1.0)) + _LEAST
            weight /= weight.sum()
            apart = np.log(row.cycles() / row.us / (1e3 * row.arch.clock_ghz))
            scale = float((weight * apart).sum())
            parts += [np.sqrt(weight) * (apart - scale), np.array([_SCALE * scale])]
        return np.concatenate(parts)

    best = least_squares(errors, start, loss="soft_l1", f_scale=0.1, diff_step=0.02, max_nfev=30)
    _set(names, best.x)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def _set(names: Sequence[str], logs: np.ndarray) -> None:
    for name, value in zip(names, np.exp(logs).tolist(), strict=True):
        setattr(model, name, value)


def told(rows: Sequence[Points]) -> str:
    """The regret of each row, and of all."""
    regrets = {row.name: row.regret for row in rows}
    mean = math.exp(statistics.fmean(map(math.log, regrets.values())))
    lines = [f"{name}: {regret:.3f}" for name, regret in regrets.items()]
    return "\n".join([*lines, f"geometric mean {mean:.3f}, worst {max(regrets.values()):.3f}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_fit")
    parser.add_argument("files", nargs="+", help="what cuda_sweep wrote")
    parser.add_argument("--constants", default=",".join(CONSTANTS), help="names, by commas")
    args = parser.parse_args(arguments)
    names = args.constants.split(",")
    unknown = [name for name in names if not isinstance(getattr(model, name, None), float)]
    if unknown:
        parser.error(
            f"constants must be numbers of tvmopt.kernels.cuda.hopper.cost, but got {unknown[0]!r}"
        )
    rows = []
    for file in args.files:
        with Path(file).open() as lines:
            rows += points_of(lines)
    if not rows:
        parser.error("the files must hold products of hopper_gemm, but they hold none")
    print(told(rows))
    found = fit(rows, names)
    print(told(rows))
    print("\n".join(f"{name} = {value:.4g}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
