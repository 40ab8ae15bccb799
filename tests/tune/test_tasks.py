"""Tests of task extraction."""

from __future__ import annotations

import pytest

from tvmopt.tune import extract_tasks

from .models import TARGET, conv_net, symbolic_net


def test_equal_functions_are_one_task_weighted_by_calls() -> None:
    tasks = {task.name: task for task in extract_tasks(conv_net(), TARGET)}
    assert sorted(task.weight for task in tasks.values()) == [1, 1, 1, 1, 2]
    conv1x1 = next(task for task in tasks.values() if "16x16x1x1" in task.shape)
    assert conv1x1.weight == 2


def test_order_depends_on_the_module_alone() -> None:
    first = [task.name for task in extract_tasks(conv_net(), TARGET)]
    second = [task.name for task in extract_tasks(conv_net(), TARGET)]
    work = [task.weight * task.flops for task in extract_tasks(conv_net(), TARGET)]
    assert first == second
    assert work == sorted(work, reverse=True)


def test_shape_text_names_inputs_and_gives_outputs() -> None:
    heaviest = extract_tasks(conv_net(), TARGET)[0]
    assert heaviest.shape == "x:1x8x14x14 f32, w3:16x8x3x3 f32 -> 1x16x14x14 f32"
    assert [argument.written for argument in heaviest.arguments] == [False, False, True]
    assert heaviest.bytes == 4 * (8 * 14 * 14 + 16 * 8 * 9 + 16 * 14 * 14)
    assert heaviest.flops >= 2 * 16 * 14 * 14 * 8 * 9


def test_symbolic_extent_is_shown_and_not_measurable() -> None:
    [task] = extract_tasks(symbolic_net(), TARGET)
    assert task.shape == "x:? f32, w:16x8 f32 -> ? f32"
    assert not task.is_static
    assert task.flops == 0
    assert task.bytes == 0


@pytest.mark.parametrize("task", extract_tasks(conv_net(), TARGET), ids=lambda task: task.name)
def test_task_module_holds_main_alone(task) -> None:
    assert [var.name_hint for var in task.mod.get_global_vars()] == ["main"]
    assert task.is_static
