"""The search space of one task, and the evolutionary search over it.

The rules are TVM's plain LLVM ones by name. Left to itself TVM picks rules by CPU, and from
cascadelake on these tensorize with a VNNI intrinsic that LLVM 22 refuses.
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
    """A ``TuneContext`` that searches ``task`` with TVM's LLVM rules.

    Args:
        task: The task.
        target: An LLVM target with ``num-cores``.
        effort: How many candidates the search considers between measurements.
        seed: Positive seed of the search.
        threads: Threads the search itself may use.
        logger: Where TVM's own account of the search goes.
    """
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule import _ffi_api

    # ApplyCustomRule serves rules that TVM 0.27 no longer has, and only prints a warning for each.
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
    # Not TuneContext(...): its constructor imports every tensor intrinsic, for 17 to 25 seconds.
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
