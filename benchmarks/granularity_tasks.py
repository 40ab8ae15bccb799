"""Measure configurations of an anchor operator alone and of the fused function around it."""

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
    """Latencies of one fused function and of its anchor operator.

    Attributes:
        name: Name of the function.
        weight: Calls in the network.
        operator_us: Latency of the operator alone, by configuration.
        subgraph_us: Latency of the fused function, by configuration.
        configs: The configurations, as text.
    """

    name: str
    weight: int
    operator_us: tuple[float, ...]
    subgraph_us: tuple[float, ...]
    configs: tuple[str, ...]

    @property
    def tau(self) -> float | None:
        """Kendall's tau between both latencies; None for fewer than two configurations."""
        from scipy.stats import kendalltau

        if len(self.configs) < 2:
            return None
        found = float(kendalltau(self.operator_us, self.subgraph_us).statistic)
        return None if math.isnan(found) else found

    @property
    def by_operator(self) -> int:
        """Index of the configuration with the fastest operator."""
        return int(np.argmin(self.operator_us))

    @property
    def by_subgraph(self) -> int:
        """Index of the configuration with the fastest fused function."""
        return int(np.argmin(self.subgraph_us))

    @property
    def regret(self) -> float:
        """Latency of the function with the operator's choice, divided by its best latency."""
        return self.subgraph_us[self.by_operator] / self.subgraph_us[self.by_subgraph]


def study_tasks(lowered: Any, target: Any, count: int, most: int) -> list[TaskStudy]:
    """Measure ``count`` configurations of the functions with most FLOPs at both granularities.

    Args:
        lowered: A lowered module.
        target: A ``TargetSpec``.
        count: Configurations per function: half are the top ranked of the operator, half the top
            ranked of the function.
        most: Most functions to study.
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
            ranked = [
                DefaultPolicy(one, arch).emit_config((count + 1) // 2) for one in (operator, func)
            ]
            hints = list(dict.fromkeys([*ranked[0], *ranked[1]]))
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
    """Plot a point per configuration: latency over the task's best at both granularities.

    Args:
        studies: Pairs of a label, the model, and a study.
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
        xlabel="operator alone: latency / best of the task",
        ylabel="fused function: latency / best of the task",
        title="The same schedules, measured at both granularities",
    )  # fmt: skip
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
