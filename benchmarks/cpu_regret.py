"""Measure the regret of the fast tuner on CPU kernels, and compare it with MetaSchedule.

Usage: ``python -m benchmarks.cpu_regret [--only NAMES] [--threads N] [--configs 500] [--topk 20]
[--model FILE.onnx [--input_shapes S] [--most 20]] [--dtype float32|bfloat16|int8]
[--metaschedule] [--seconds S] [--json FILE]``

Regret is the latency of a choice divided by the latency of the best of ``configs`` measured
configurations. The first table has the regret of the top-1 configuration of the cost model and of
the top-k choice of the fast tuner, all timed interleaved. ``--only`` takes names of tasks or kinds.
``--model`` takes the kernels of a model, converted to ``--dtype``. ``--metaschedule`` adds a second
table with TVM's MetaSchedule, which gets ten times the wall time of the fast tuner; ``--configs 0``
skips the first table. The built-in tasks take about half an hour on 2 cores, and MetaSchedule
another hour. The exit code is 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import metaschedule_peer, options, regret, report
from benchmarks.low_precision import DTYPES
from benchmarks.regret_table import regret_operators
from benchmarks.tuning_tasks import TuningTask, model_tasks, operator_task

_TIMING_S = 4.0  # timing limit per task of the second table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    from tvmopt.device.target import resolve_target

    limit = "limit per task of measuring configurations in seconds, 0 is none"
    parser = options.make_parser("cpu_regret", __doc__, 0.0, limit)
    parser.add_argument(
        "--configs", type=int, default=500, help="configurations per task, default 500"
    )
    parser.add_argument("--most", type=int, default=20, help="most kernels of --model, default 20")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="int8 needs --model")
    parser.add_argument("--metaschedule", action="store_true", help="compare with MetaSchedule")
    args = options.parse(parser, arguments)
    if args.configs < 1 and not args.metaschedule:
        parser.error(f"--configs must be at least 1 without --metaschedule, but got {args.configs}")
    if args.dtype == "int8" and not args.model:
        parser.error("--dtype int8 must come with --model, but there is no --model")
    with options.errors_in_one_line(parser):
        target = resolve_target("host", args.threads)
        tasks = _tasks(parser, args, target)
    facts = report.environment(args.threads) | {
        "dtype": args.dtype,
        "topk": args.topk,
        "configs": args.configs,
    }
    report.print_environment(facts, needed=())
    regrets = _regrets(tasks, target, args) if args.configs else []
    means = regret.means(regrets)
    code = report.finish(args.json, facts, regrets, geometric_means=means)
    if not args.metaschedule:
        return code
    peers = _peers(tasks, target, args)
    faster = metaschedule_peer.faster(peers)
    return report.finish(args.json, facts, [*regrets, *peers], geometric_means=means, faster=faster)


def _tasks(
    parser: argparse.ArgumentParser, args: argparse.Namespace, target: Any
) -> list[TuningTask]:
    if args.model:
        found = model_tasks(Path(args.model), args.input_shapes, target, args.most, args.dtype)
        known = dict.fromkeys([*(t.kind for t in found), *(t.name for t in found)])
        wanted = options.check_names(parser, args.only, known)
        return [t for t in found if wanted is None or t.kind in wanted or t.name in wanted]
    rows = regret_operators()
    known = dict.fromkeys([*(kind for kind, _ in rows), *(op.name for _, op in rows)])
    wanted = options.check_names(parser, args.only, known)
    return [
        operator_task(kind, op, target, args.dtype)
        for kind, op in rows
        if wanted is None or kind in wanted or op.name in wanted
    ]


def _regrets(
    tasks: Sequence[TuningTask], target: Any, args: argparse.Namespace
) -> list[regret.RegretRow]:
    from tvmopt.measure.devices import device_of
    from tvmopt.measure.measurer import Measurer

    settings = regret.Settings(args.configs, args.topk, args.seconds)
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        Measurer(device_of(target.arch()), Path(scratch)) as measurer,
    ):
        rows = report.measure_all(
            tasks,
            lambda task: regret.measure(task, target.arch(), measurer, settings),
            lambda row: (
                f"top-1 {row.top1:.3f}, top-{args.topk} {row.tuned:.3f}, {row.seconds:.0f} s"
            ),
        )
    print(f"\n{regret.table(rows, args.topk)}\n\nRegret, geometric means:")
    for kind, mean in regret.means(rows).items():
        count = sum(not row.problem and kind in ("all", row.kind) for row in rows)
        print(f"- {kind} ({count}): top-1 {report.number(mean['top-1'], '.3f')}, "
              f"top-{args.topk} {report.number(mean['tuned'], '.3f')}")  # fmt: skip
    for row in rows:
        for reason, count in row.failures.items():
            print(f"- {row.name}: {count} x {reason}")
    return rows


def _peers(
    tasks: Sequence[TuningTask], target: Any, args: argparse.Namespace
) -> list[metaschedule_peer.PeerRow]:
    rows = report.measure_all(
        tasks,
        lambda task: metaschedule_peer.compare(task, target, args.topk, _TIMING_S),
        lambda row: (
            f"MetaSchedule / fast {row.ratio:.2f}, error {row.error:.1e}, "
            f"{sum(row.seconds.values()):.0f} s"
        ),
    )
    print(f"\n{metaschedule_peer.table(rows)}\n")
    won, of = metaschedule_peer.faster(rows)
    print(f"tvmopt is faster on {won} of {of} tasks")
    for row in rows:
        if row.note:
            print(f"- {row.name}: {row.note}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
