"""Stage 2: find schedules for every fused function of the module."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvm import tirx

from tvmopt.choices import MEASURING
from tvmopt.config import TuneConfig
from tvmopt.device.gpus import CONSTANTS_TAG, constants_words
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.remote import Board
from tvmopt.remote.session import check_tracker
from tvmopt.stages import kept_library
from tvmopt.stages.module_files import write_script
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.size_folders import read_size, size_folders
from tvmopt.stages.tune_files import (
    ALTERNATIVES_FILE,
    LOG_FILE,
    PLAN_FILE,
    REGRET_FILE,
    TASKS_FILE,
)
from tvmopt.stages.tune_layers import LayerTuning, in_words, tune_layers, write_alternatives
from tvmopt.stages.tune_sizes import tune_further_sizes
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import write_plan
from tvmopt.tune.base import TuneOptions, TuneResult, TuneStrategy

# Seconds to measure all functions of a network, for each; or to rank them, for each, and to measure
# the heaviest. A Zen 4 with 2 threads ranks 49 in 4 s, measures the 6 heaviest in 22 s and all in
# 60 s; a loaded CPU with AMX measured 2 of 30 to 73 in 30 s:
# benchmarks/results/2026-11-29-search-amx-4.md.
_S_A_FUNCTION, _RANKING_S_A_FUNCTION, _HEAVIEST_S = 0.5, 0.2, 12.0
#: Tag with the reason why nothing was measured.
UNMEASURED_TAG = "tvmopt.unmeasured.tuning"


def tune(
    config: TuneConfig,
    convert_dir: Path,
    out_dir: Path,
    progress: Progress,
    warm_start: Path | None = None,
    earlier: Mapping[str, Path] | None = None,
) -> StageResult:
    """Run a strategy over the tasks of a converted model, in each of its sizes.

    Writes the tuning database (if the strategy keeps one), the per-task table, the tuning log, the
    convergence plot (if something was measured), the regret of the cost model (``fast`` only) and
    the lowered IR. Where layers have alternative implementations, it also writes their latencies
    and the chosen plan. Records of databases in ``earlier`` are copied if they have the same key.

    Further sizes have the records of the largest, and fewer candidates for the rest.

    Where neither this machine nor a board can run the target, ``fast`` takes top-1 of its cost
    model, unmeasured, and a tag says so; it does so, too, where the time is too short to measure.

    Raises:
        ConfigError: When nothing can run the target, but the strategy must measure; when there is
            no such board.
        DatabaseMismatchError: When ``warm_start`` was written for another target.
    """
    from tvmopt.tune import create_strategy

    target = TargetSpec.from_dict(config.target)
    config, board, tags = _where(config, target)
    options = TuneOptions(
        trials=config.trials,
        time_budget_s=config.time_budget,
        threads=target.threads,
        topk=config.topk,
        seed=config.seed,
        warm_start=warm_start,
        earlier=tuple((earlier or {}).values()),
        board=board,
        granularity=config.granularity,
    )
    if too_short := _is_too_short(config, convert_dir, target):
        config = dataclasses.replace(config, strategy="default")
    strategy = create_strategy(config.strategy)
    result = _tune_largest(config, strategy, options, convert_dir, out_dir, progress)
    result.tags.update(tags)
    if target.gpu is not None:
        result.tags[CONSTANTS_TAG] = constants_words(target.gpu)
    if too_short:
        result.changed.append(
            f"top-1 of 'fast' for each, since {options.time_budget_s:g} s are too short to measure"
        )
    if UNMEASURED_TAG in tags:
        result.changed.append(f"top-1 of 'fast' for each, since {target.why_not_here()}")
    if size_folders(convert_dir)[1:]:
        tune_further_sizes(config, strategy, options, convert_dir, out_dir, progress, result)
    return result


def _is_too_short(config: TuneConfig, convert_dir: Path, target: TargetSpec) -> bool:
    """Return whether ``fast`` would rank most of its time, and measure few functions.

    The build then takes over the library that the convert stage has compiled, where that kept one.
    """
    if config.strategy != "fast" or not config.time_budget:
        return False
    kept = kept_library.find(convert_dir, target)
    if kept is not None:
        functions = len(kept.built.sources)
    else:
        lowered = lower(read_size(convert_dir, 0), target.to_tvm())
        functions = sum(isinstance(func, tirx.PrimFunc) for _, func in lowered.functions_items())
    return config.time_budget < least_seconds(functions)


def least_seconds(functions: float) -> float:
    """Return the seconds from which on ``fast`` is worth its time for a number of functions."""
    return min(_S_A_FUNCTION * functions, _HEAVIEST_S + _RANKING_S_A_FUNCTION * functions)


def _where(
    config: TuneConfig, target: TargetSpec
) -> tuple[TuneConfig, Board | None, dict[str, str]]:
    """Return the configuration for what can be measured, the board if any, and tags.

    Raises:
        ConfigError: When nothing can run the target, but the strategy must measure.
    """
    board = Board.parse(config.rpc_tracker, config.rpc_key)
    lacking = target.why_not_here()
    if board is not None:
        check_tracker(board)
        return config, board, {
            "tvmopt.rpc_key": board.key, "tvmopt.rpc_tracker": board.address
        }  # fmt: skip
    if lacking and config.strategy == "fast":
        reason = (
            f"{target.why_unmeasured()}: top-1 of the cost model of 'fast' is taken for every "
            "function"
        )
        return dataclasses.replace(config, strategy="default"), None, {UNMEASURED_TAG: reason}
    if lacking and config.strategy in MEASURING:
        raise ConfigError(
            f"strategy {config.strategy!r} must measure on the target, but {lacking}; give "
            "rpc_tracker and rpc_key of a board, or use strategy=default"
        )
    return config, None, {}


def _tune_largest(
    config: TuneConfig,
    strategy: TuneStrategy,
    options: TuneOptions,
    convert_dir: Path,
    out_dir: Path,
    progress: Progress,
) -> StageResult:
    """Tune the largest size."""
    from tvmopt.tune import extract_tasks
    from tvmopt.tune.convergence import convergence_points, plot_convergence
    from tvmopt.tune.regret import mean_regret, regret_rows, write_regret
    from tvmopt.tune.report import write_task_csv, write_task_markdown

    target = TargetSpec.from_dict(config.target)
    llvm, arch = target.to_tvm(), target.arch()
    has_alternatives = not arch.layout and config.granularity == "subgraph"
    if has_alternatives and config.strategy in MEASURING:
        mod = read_size(convert_dir, 0)
        tuning = tune_layers(mod, target, strategy, options, out_dir, progress)
    else:
        kept = kept_library.find(convert_dir, target) if config.strategy == "default" else None
        if kept is not None:
            lowered = kept.lowered()
            options = dataclasses.replace(options, sources=kept.built.sources)
        else:
            mod = read_size(convert_dir, 0)
            lowered = lower(mod, llvm, winograd=config.strategy != "none")
        tasks = extract_tasks(lowered, llvm, config.granularity)
        result = strategy.tune(tasks, llvm, arch, options, out_dir, progress)
        tuning = LayerTuning(result, {}, lowered)
    result = tuning.result
    write_script(out_dir / "lowered.py", tuning.lowered)
    if tuning.alternatives is not None:
        write_plan(out_dir / PLAN_FILE, tuning.plan)
        write_alternatives(tuning, out_dir / ALTERNATIVES_FILE)
    write_task_csv(result.tasks, out_dir / TASKS_FILE)
    write_task_markdown(result.tasks, out_dir / "tasks.md")
    with (out_dir / LOG_FILE).open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in result.log)
    plot_convergence(result, out_dir / "convergence.png")
    regret = regret_rows(result.log)
    if regret:
        write_regret(regret, out_dir / REGRET_FILE)

    failures = sum(task.failures for task in result.tasks)
    served = sum(task.source == "database" for task in result.tasks)
    metrics = {
        "tune_s": result.seconds,
        "tune_trials": float(result.trials),
        "tune_failures": float(failures),
        "tasks": float(len(result.tasks)),
        "tasks_from_database": float(served),
    } | mean_regret(regret)
    changed = _changed(result, failures, served, config.granularity) + in_words(tuning)
    return StageResult(metrics, {}, changed, _series(convergence_points(result)))


def _series(
    points: Sequence[tuple[int, float, float]],
) -> dict[str, list[tuple[int, float, float]]]:
    """Return the convergence as metrics, with the number of measured candidates as step."""
    if not points:
        return {}
    return {
        "tune_best_latency_ms": list(points),
        "tune_elapsed_s": [(number, seconds, seconds) for number, seconds, _ in points],
    }


def _changed(result: TuneResult, failures: int, served: int, granularity: str) -> list[str]:
    tasks = result.tasks
    if result.trials == 0 and result.database_dir is None:
        scheduled = sum(task.source.startswith("default:") for task in tasks)
        return [f"{len(tasks)} tasks, {scheduled} with a default schedule, none measured"]
    return [
        f"{len(tasks)} tasks by {granularity}, {result.trials} candidates measured, "
        f"{failures} failed, {result.seconds:.1f} s",
        f"{served} tasks have a measured schedule no slower than the default",
    ]
