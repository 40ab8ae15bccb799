"""The contract of every kernel template: each schedule computes what its function computes.

For each function and hint, a template emits a schedule or refuses with a reason. An emitted
schedule gives the same results, with weights packed at build time or at each call. Its trace
replays, where a tuning database stores it. Its hint survives JSON.
"""

from __future__ import annotations

import collections
import json

import tvm
from tvm import s_tir, tirx

from tests.kernels.cpu.candidates import Cpu, cases, check_numbers, chosen_hints
from tests.kernels.cpu.drawn import Drawn
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.emit import NotApplicable, emit, hint_from_dict
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.scheduled import REWRITTEN_ATTR


def assert_replays(schedule: s_tir.Schedule, func: tirx.PrimFunc) -> None:
    """Assert that the trace, as a database stores it, replays to the same module.

    A database stores no trace of a function that was rewritten first.
    """
    if REWRITTEN_ATTR in schedule.mod["main"].attrs:
        return
    again = s_tir.Schedule(tvm.IRModule({"main": func}))
    s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)


def assert_survives_json(hint: CpuHint) -> None:
    again = hint_from_dict(json.loads(json.dumps(hint.to_dict())))
    assert again == hint
    assert again.config_id == hint.config_id


def keep_contract(drawn: Drawn, cpu: Cpu) -> collections.Counter[str]:
    """Assert the contract of every template on ``drawn``; count the schedules of each."""
    served: collections.Counter[str] = collections.Counter()
    for case in cases(drawn, cpu.target):
        if not any(int(e) > 1 for p in case.func.params for e in p.shape):
            continue  # a scalar has no loops to schedule
        schedules = []
        for hint in chosen_hints(case.func, cpu.arch):
            assert_survives_json(hint)
            try:
                schedule = emit(case.func, hint)
            except NotApplicable as error:
                assert str(error).startswith(hint.template)
                continue
            served[hint.template] += 1
            assert_replays(schedule, case.func)
            schedules.append(schedule.mod["main"])
        # Some template schedules every function.
        assert not schedule_function(case.func, cpu.arch).rule.startswith("unscheduled")
        check_numbers(case, schedules, cpu.target)
    return served
