"""Search space of one task, and MetaSchedule's evolutionary search over it.

The schedule rules are TVM's plain LLVM rules, selected by name. By default TVM selects rules by
CPU. From Cascade Lake on, these tensorize with a VNNI intrinsic that LLVM 22 rejects.
"""

from __future__ import annotations

import logging
from typing import Any

from tvm.target import Target

from tvmopt.tune.budget import SearchEffort
from tvmopt.tune.tasks import Task


def make_context(
    task: Task,
    target: Target,
    effort: SearchEffort,
    seed: int,
    threads: int,
    logger: logging.Logger,
) -> Any:
    """Return a ``TuneContext`` that searches ``task`` with TVM's LLVM rules.

    Args:
        task: The task.
        target: An LLVM target with ``num-cores``.
        effort: Number of candidates that the search considers between measurements.
        seed: Positive random seed.
        threads: Number of threads of the search itself.
        logger: Logger for TVM's messages.
    """
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule import _ffi_api

    # ApplyCustomRule refers to rules that TVM 0.27 removed, and prints a warning for each.
    rules = [
        rule
        for rule in ms.schedule_rule.ScheduleRule.create("llvm")
        if not isinstance(rule, ms.schedule_rule.ApplyCustomRule)
    ]
    space = ms.space_generator.PostOrderApply(
        sch_rules=rules, postprocs="llvm", mutator_probs="llvm"
    )
    search = ms.search_strategy.EvolutionarySearch(
        population_size=effort.population,
        init_min_unmeasured=effort.population // 2,
        genetic_num_iters=effort.generations,
    )
    # Not TuneContext(...): its constructor imports all tensor intrinsics, which takes 17 to 25 s.
    context = _ffi_api.TuneContext(
        task.mod,
        target,
        space,
        search,
        task.name,
        threads,
        seed,
        ms.logging.get_logging_func(logger),
    )
    _ffi_api.TuneContextInitialize(context)
    return context
