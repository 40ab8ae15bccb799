"""The fast tuner's choices beside the best of 500 measured configurations, and MetaSchedule's.

``python -m benchmarks.cpu_regret [--only NAMES] [--threads N] [--configs 500] [--topk 20]
[--model FILE.onnx [--input_shapes S] [--most 20]] [--dtype float32|bfloat16|int8]
[--metaschedule] [--seconds S] [--json FILE]`` prints a table of regrets: latency of the policy's
first choice (top-1) and of the fast tuner's choice (best of ``topk``) over that of the best
configuration known, the three timed side by side. ``--only`` takes names of rows or of kinds;
``--model`` takes the kernels of a model, which ``--dtype`` converts first. With
``--metaschedule`` a second table has the fast tuner beside TVM's MetaSchedule, which gets ten times
the wall time; ``--configs 0`` leaves the first out. On 2 cores the built-in tasks take about half
an hour, with MetaSchedule about an hour more. Exits with 1 when a result is wrong.
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

_TIMING_S = 4.0  # of the two contenders of the second table


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    from tvmopt.device.target import resolve_target

    spent = "seconds after which a task's best is sought no further, 0 is no limit"
    parser = options.make_parser("cpu_regret", __doc__, 0.0, spent)
    parser.add_argument("--configs", type=int, default=500, help="measured a task, default 500")
    parser.add_argument("--most", type=int, default=20, help="kernels of --model, default 20")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="int8 takes --model")
    parser.add_argument("--metaschedule", action="store_true", help="compare with MetaSchedule")
    args = options.parse(parser, arguments)
    if args.configs < 1 and not args.metaschedule:
        parser.error(f"--configs must be at least 1 without --metaschedule, but got {args.configs}")
    if args.dtype == "int8" and not args.model:
        parser.error("--dtype int8 must come with --model, whose kernels are taken, but has none")
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
                f"top-1 {row.first:.3f}, best of {args.topk} {row.tuned:.3f}, {row.seconds:.0f} s"
            ),
        )
    print(f"\n{regret.table(rows, args.topk)}\n\nRegret, geometric means:")
    for kind, mean in regret.means(rows).items():
        count = sum(not row.problem and kind in ("all", row.kind) for row in rows)
        print(f"- {kind} ({count}): top-1 {report.number(mean['first'], '.3f')}, "
              f"best of {args.topk} {report.number(mean['tuned'], '.3f')}")  # fmt: skip
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
    print(f"ours is faster on {won} of {of}")
    for row in rows:
        if row.note:
            print(f"- {row.name}: {row.note}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
