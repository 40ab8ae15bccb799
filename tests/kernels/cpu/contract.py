"""One contract for every template: whatever the function and the hint, the numbers stay.

A template gives a schedule or says that it does not fit. What it gives computes the same, with its
weights packed before or within; its trace replays, since that is what a tuning database keeps; and
its hint survives JSON.
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


def assert_replays(schedule: s_tir.Schedule, func: tirx.PrimFunc) -> None:
    """The trace, as a database keeps it, gives the same module again."""
    again = s_tir.Schedule(tvm.IRModule({"main": func}))
    s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)


def assert_survives_json(hint: CpuHint) -> None:
    again = hint_from_dict(json.loads(json.dumps(hint.to_dict())))
    assert again == hint
    assert again.config_id == hint.config_id


def keep_contract(drawn: Drawn, cpu: Cpu) -> collections.Counter[str]:
    """Hold every template to the contract on ``drawn``; count the schedules of each."""
    served: collections.Counter[str] = collections.Counter()
    for case in cases(drawn, cpu.target):
        if not any(int(e) > 1 for p in case.func.params for e in p.shape):
            continue  # a scalar: nothing to schedule
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
        # Nothing is left as it was: there is a template for every function.
        assert not schedule_function(case.func, cpu.arch).rule.startswith("unscheduled")
        check_numbers(case, schedules, cpu.target)
    return served
