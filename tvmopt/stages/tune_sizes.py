"""Tune further sizes of a model, and choose for all how their weights are packed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import tvm

from tvmopt.build import SizeModule, schedule_size
from tvmopt.config import TuneConfig
from tvmopt.device.target import TargetSpec
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.size_folders import read_size, size_folder, size_folders
from tvmopt.stages.tune_files import DATABASE_DIR, PACKING_FILE, PLAN_FILE
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import read_plan
from tvmopt.transform.share_packing import Tiles, choose_tiles, packed_tiles, with_tiles
from tvmopt.tune.base import TuneOptions, TuneStrategy


def tune_further_sizes(
    config: TuneConfig,
    strategy: TuneStrategy,
    options: TuneOptions,
    convert_dir: Path,
    out_dir: Path,
    progress: Progress,
    result: StageResult,
) -> None:
    """Choose tiles of packed weights; tune the further sizes if the strategy keeps a database.

    They take the implementations and the records of the largest size. Their metrics are added to
    ``result``. Where ``fast`` would measure one candidate of each function, it measures none: the
    build takes top-1 of the cost model, as measuring would.

    Args:
        config: Configuration of the stage.
        strategy: Its strategy.
        options: Options with which the largest size was tuned.
        convert_dir: Output of the convert stage.
        out_dir: Folder with the results of the largest size.
        progress: Called while the strategy works.
        result: Result of the largest size.
    """
    from tvmopt.tune import extract_tasks

    target = TargetSpec.from_dict(config.target)
    tvm_target, arch = target.to_tvm(), target.arch()
    plan = read_plan(out_dir / PLAN_FILE)
    winograd = config.strategy != "none"
    sizes = [
        lower(read_size(convert_dir, size), tvm_target, winograd=winograd, plan=plan)
        for size in range(len(size_folders(convert_dir)))
    ]
    database = out_dir / DATABASE_DIR
    tiles = _tiles_of_sizes(sizes, target, database)
    (out_dir / PACKING_FILE).write_text(json.dumps(tiles))
    if not database.is_dir():
        return
    less = config.for_further_size()
    if config.strategy == "fast" and less.topk == 1:
        result.changed.append(f"{len(sizes) - 1} further sizes: top-1 of the cost model")
        return
    options = dataclasses.replace(
        options, topk=less.topk, trials=less.trials, time_budget_s=less.time_budget,
        warm_start=None, earlier=(*options.earlier, database),
    )  # fmt: skip
    for number in range(1, len(sizes)):
        folder = size_folder(out_dir, number)
        folder.mkdir(parents=True)
        noted = with_tiles(sizes[number], tiles[number])
        tasks = extract_tasks(noted, tvm_target, config.granularity)
        tuned = strategy.tune(tasks, tvm_target, arch, options, folder, progress)
        result.metrics["tune_s"] += tuned.seconds
        result.metrics["tune_trials"] += float(tuned.trials)
    result.changed.append(
        f"{len(sizes) - 1} further sizes: {result.metrics['tune_trials']:.0f} candidates measured "
        f"for all, {result.metrics['tune_s']:.1f} s"
    )


def packed_as_chosen(mod: tvm.IRModule, tune_dir: Path | None, size: int) -> tvm.IRModule:
    """Return a lowered module with notes of how the tune stage chose to pack its weights."""
    path = tune_dir and tune_dir / PACKING_FILE
    if path is None or not path.is_file():
        return mod
    tiles: list[Tiles] = json.loads(path.read_text())
    return with_tiles(mod, tiles[size])


def _tiles_of_sizes(
    sizes: Sequence[tvm.IRModule], target: TargetSpec, database: Path
) -> list[Tiles]:
    """Return the tile that each size packs its weights for.

    Args:
        sizes: Lowered modules, the largest first.
        target: Target to compile for.
        database: Tuning database of the largest size, which keeps its tiles, if there is one.
    """
    arch = target.arch()
    if not database.is_dir():
        return choose_tiles(sizes, arch, {})
    largest = SizeModule(sizes[0], database)
    scheduled = schedule_size(largest, target, target.to_tvm(), "default").after
    return [{}, *choose_tiles(sizes[1:], arch, packed_tiles(scheduled))]
