"""The same configurations of a kernel measured twice: of the operator alone, and as it runs."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class TaskStudy:
    """One fused function and its anchor operator.

    Attributes:
        name: Name of the function.
        weight: Calls of the network.
        operator_us: Latency of each configuration of the operator alone.
        subgraph_us: Latency of the same in the fused function.
        configs: The configurations, as text.
    """

    name: str
    weight: int
    operator_us: tuple[float, ...]
    subgraph_us: tuple[float, ...]
    configs: tuple[str, ...]

    @property
    def tau(self) -> float | None:
        """Kendall's rank correlation of both; None of fewer than two configurations."""
        from scipy.stats import kendalltau

        if len(self.configs) < 2:
            return None
        found = float(kendalltau(self.operator_us, self.subgraph_us).statistic)
        return None if math.isnan(found) else found

    @property
    def by_operator(self) -> int:
        """Index of the configuration that measuring the operator picks."""
        return int(np.argmin(self.operator_us))

    @property
    def by_subgraph(self) -> int:
        """Index of the configuration that measuring the function picks."""
        return int(np.argmin(self.subgraph_us))

    @property
    def regret(self) -> float:
        """How many times as long the function takes under the operator's pick as under its own."""
        return self.subgraph_us[self.by_operator] / self.subgraph_us[self.by_subgraph]


def study_tasks(lowered: Any, target: Any, count: int, most: int) -> list[TaskStudy]:
    """Measure ``count`` configurations of the heaviest functions both ways.

    Args:
        lowered: A lowered module.
        target: A ``TargetSpec``.
        count: Configurations of a function: half are the policy's choice for the operator, half
            its choice for the function.
        most: Functions to look at, those with the most arithmetic.
    """
    from tvmopt.kernels.policies import DefaultPolicy
    from tvmopt.measure.devices import device_of
    from tvmopt.measure.measurer import Candidates, Measurer
    from tvmopt.tune import extract_tasks
    from tvmopt.tune.operator import operator_function
    from tvmopt.tune.tasks import network_bytes

    llvm, arch = target.to_tvm(), target.arch()
    tasks = extract_tasks(lowered, llvm)
    weights = network_bytes(tasks)
    found: list[TaskStudy] = []
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        Measurer(device_of(arch), Path(scratch)) as measurer,
    ):
        for task in tasks:
            func = task.mod["main"]
            operator = operator_function(func) if task.is_static else None
            if operator is None or operator.same_as(func) or len(found) >= most:
                continue
            halves = [
                DefaultPolicy(one, arch).emit_config((count + 1) // 2) for one in (operator, func)
            ]
            hints = list(dict.fromkeys([*halves[0], *halves[1]]))
            alone, fused = measurer.measure(
                [Candidates(one, hints, weight_bytes=weights) for one in (operator, func)]
            )
            study = _study(task.name, task.weight, alone, fused)
            if study is not None:
                found.append(study)
    return found


def _study(name: str, weight: int, alone: Sequence[Any], fused: Sequence[Any]) -> TaskStudy | None:
    both = [
        (a.latency_us, f.latency_us, str(a.hint))
        for a, f in zip(alone, fused, strict=True)
        if a.latency_us is not None and f.latency_us is not None
    ]
    if not both:
        return None
    operator_us, subgraph_us, configs = zip(*both, strict=True)
    return TaskStudy(name, weight, operator_us, subgraph_us, configs)


def plot_studies(studies: Sequence[tuple[str, TaskStudy]], path: Path) -> None:
    """One point a configuration: its latency alone and as it runs, over the best of its task.

    Args:
        studies: With the name of the model that each is from.
        path: PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for label in dict.fromkeys(label for label, _ in studies):
        x: list[float] = []
        y: list[float] = []
        for of, study in studies:
            if of == label:
                x += [us / min(study.operator_us) for us in study.operator_us]
                y += [us / min(study.subgraph_us) for us in study.subgraph_us]
        axis.scatter(x, y, s=10, alpha=0.6, label=label)
    axis.plot([1, 4], [1, 4], color="grey", linewidth=0.8)
    axis.set(
        xscale="log", yscale="log", xlim=(0.97, 4), ylim=(0.97, 4),
        xlabel="operator alone: latency over the best of its task",
        ylabel="fused function: latency over the best of its task",
        title="The same schedules, measured at both granularities",
    )  # fmt: skip
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
