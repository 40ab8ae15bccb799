"""One contract for every template: whatever the function and the hint, the numbers stay.

A template gives a schedule or says that it does not fit. What it gives computes the same, with its
weights packed before or within; its trace replays, since that is what a tuning database keeps; and
its hint survives JSON.
"""

from __future__ import annotations

import collections
import json

import hypothesis
import pytest
import tvm
from hypothesis import strategies as st
from tvm import s_tir, tirx

from tvmopt.policy import schedule_function
from tvmopt.schedule import TEMPLATES, Hint, NotApplicable, apply_hint

from .candidates import Cpu, cases, check_numbers, chosen_hints, cpus, two_threads
from .drawn import KINDS, Drawn

__all__ = ["two_threads"]

CPUS = cpus()
# Which templates must have served at least once among the functions of a kind.
SERVED = {
    "convolution": {"register_tile", "contraction", "contraction_in_place", "fallback"},
    "depthwise": {"register_tile", "window", "contraction", "fallback"},
    "matmul": {"register_tile", "contraction", "contraction_in_place", "fallback"},
    "transposed_convolution": {"register_tile", "elementwise", "fallback"},
    "pooling": {"window", "row_reduction", "contraction", "fallback"},
    "reduction": {"window", "row_reduction", "contraction", "fallback"},
    "elementwise": {"elementwise", "fallback"},
    "movement": {"elementwise", "fallback"},
}


def assert_replays(schedule: s_tir.Schedule, func: tirx.PrimFunc) -> None:
    """The trace, as a database keeps it, gives the same module again."""
    again = s_tir.Schedule(tvm.IRModule({"main": func}))
    s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)


def assert_survives_json(hint: Hint) -> None:
    again = Hint.from_dict(json.loads(json.dumps(hint.to_dict())))
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
                schedule = apply_hint(case.func, hint)
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


def _draw(kind: str, examples: int, executor) -> None:
    served: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn=KINDS[kind], cpu=st.sampled_from(CPUS))
    def contract(drawn: Drawn, cpu: Cpu) -> None:
        served.update(executor.submit(keep_contract, drawn, cpu).result())

    contract()
    assert SERVED[kind] <= set(served), f"never applied: {SERVED[kind] - set(served)}"
    assert set(served) <= set(TEMPLATES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_keeps_the_contract(kind: str, two_threads) -> None:
    _draw(kind, 8, two_threads)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_keeps_the_contract_on_many_functions(kind: str, two_threads) -> None:
    _draw(kind, 150, two_threads)
