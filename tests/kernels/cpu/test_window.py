"""Depthwise convolution and pooling without a padded copy of the data: right results."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.kernels.cpu.harness import ARCH, assert_close, lower, prim_funcs, run
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.analysis import all_facts
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.window.config import INLINED, WindowConfig
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.policies import DefaultPolicy

nn, op = relax.op.nn, relax.op
_NHWC = {"data_layout": "NHWC", "kernel_layout": "HWOI"}


def _depthwise(kernel: int, stride: int, channels: int):
    def build(x, w):
        y = nn.conv2d(x, w, stride, kernel // 2, 1, channels, **_NHWC)
        return nn.relu(y)

    return build, [((1, 13, 14, channels), "float32"), ((kernel, kernel, channels, 1), "float32")]


def _pool(kind: str):
    pool = nn.max_pool2d if kind == "max" else nn.avg_pool2d
    return lambda x: pool(x, 3, 2, 1, layout="NHWC"), [((2, 15, 12, 32), "float32")]


CASES = {
    "3x3": _depthwise(3, 1, 32),
    "5x5, stride 2": _depthwise(5, 2, 16),
    "maximum": _pool("max"),
    "average": _pool("avg"),
}


def _inlined(func) -> list[WindowConfig]:
    ranked = [r.hint for r in DefaultPolicy(func, ARCH).ranked]
    return [h for h in ranked if h.template == "window" and h.producer_depth == INLINED]


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_numbers_stay_and_nothing_is_copied(case) -> None:
    build, operands = CASES[case]
    mod = lower(build, operands)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(dtype) for shape, dtype in operands]
    expected = run(mod, inputs)[0]
    names = {g.name_hint: f for g, f in mod.functions_items() if f in prim_funcs(mod).values()}
    [(name, func)] = [(n, f) for n, f in names.items() if _inlined(f)]
    hints = _inlined(func)
    for hint in (hints[0], hints[len(hints) // 2], hints[-1]):
        schedule = emit(func, hint)
        assert "pad" not in schedule.mod["main"].script().replace(name, "")
        assert_replays(schedule, func)
        changed = lower(build, operands)
        changed[name] = schedule.mod["main"].with_attr("global_symbol", name)
        assert_close(run(changed, inputs)[0], expected)


def test_channels_may_lie_outside_of_the_image() -> None:
    mod = lower(*CASES["3x3"])
    [func] = [f for f in prim_funcs(mod).values() if _inlined(f)]
    assert {hint.loop_order for hint in _inlined(func)} == {
        (0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2),
    }  # fmt: skip


def test_what_is_computed_before_the_padding_is_not_computed_again_for_every_tap() -> None:
    def build(x):
        padded = nn.pad(op.exp(x), [0, 0, 1, 1, 1, 1, 0, 0])
        return nn.max_pool2d(padded, 3, 1, 0, layout="NHWC")

    mod = lower(build, [((1, 12, 12, 32), "float32")])
    for func in prim_funcs(mod).values():
        hints = [r.hint for r in DefaultPolicy(func, ARCH).ranked if r.hint.template == "window"]
        assert all(hint.producer_depth != INLINED for hint in hints)
        for hint in hints[:1]:
            with pytest.raises(NotApplicable, match="no padding that can be inlined"):
                emit(func, dataclasses.replace(hint, producer_depth=INLINED))


def test_a_tile_of_a_product_has_nothing_to_inline() -> None:
    mod = lower(
        lambda x, w: nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"),
        [((1, 14, 14, 16), "float32"), ((3, 3, 16, 32), "float32")],
    )
    for func in prim_funcs(mod).values():
        for ranked in DefaultPolicy(func, ARCH).ranked:
            if ranked.hint.template == "register_tile":
                with pytest.raises(NotApplicable):
                    emit(func, dataclasses.replace(ranked.hint, producer_depth=INLINED))
                return
    raise AssertionError("no register tile")


@pytest.mark.parametrize(("vectors", "parts"), [(4, 1), (11, 2), (25, 2), (25, 4), (1, 4)])
def test_a_sum_over_an_image_reads_it_once_in_vectors_that_divide(vectors, parts) -> None:
    lanes = ARCH.lanes("float32") // parts
    channels = vectors * lanes
    shape = (1, 6, 20, channels)
    mod = lower(lambda x: op.sum(op.astype(x, "float32"), [1, 2]), [(shape, "bfloat16")])
    [(name, func)] = prim_funcs(mod).items()
    hint = next(r.hint for r in DefaultPolicy(func, ARCH).ranked if r.hint.template == "window")
    schedule = emit(func, hint)
    [total] = [f for f in all_facts(schedule) if f.reduction]
    block = schedule.get_sblock(total.name)
    assert "bfloat16" in {str(read.buffer.dtype) for read in total.reads}
    assert int(schedule.get(schedule.get_loops(block)[-1]).extent) == min(lanes, channels)
    x = np.random.default_rng(0).standard_normal(shape).astype(ml_dtypes.bfloat16)
    changed = lower(lambda x: op.sum(op.astype(x, "float32"), [1, 2]), [(shape, "bfloat16")])
    changed[name] = finish(schedule.mod["main"], func).with_attr("global_symbol", name)
    assert_close(run(changed, [x])[0], x.astype(np.float32).sum((1, 2)))
