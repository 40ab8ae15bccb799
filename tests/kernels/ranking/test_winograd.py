"""Configurations of the Winograd template: all apply, and their costs are plausible."""

from __future__ import annotations

import dataclasses

import pytest
from tvm import relax, tirx

from tests.kernels.ranking.functions import ARCH, convolution, function
from tvmopt.kernels.cpu.winograd.schedule import match_winograd
from tvmopt.kernels.cpu.winograd.space import winograd_hints
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.workload import Refusal
from tvmopt.transform.winograd import call_winograd


def winograd(size=28, channels=64, outputs=64, m=4, batch=1) -> tirx.PrimFunc:
    """A Winograd convolution with m x m tiles."""
    return function(
        lambda x, u: call_winograd(relax.BlockBuilder.current(), x, u, m, (1, 1, 1, 1)),
        (batch, size, size, channels),
        (m + 2, m + 2, channels, outputs),
    )


def cycles(func: tirx.PrimFunc, arch=ARCH) -> dict:
    form = match_winograd(func)
    assert form is not None
    return {ranked.hint: ranked.cycles for ranked in winograd_hints(form, arch)}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"m": 2}, {"size": 13, "outputs": 48}, {"size": 7, "batch": 3}, {"size": 61, "m": 2},
        {"outputs": 24, "channels": 40},
    ],
)  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_every_configuration_applies(settings, cores) -> None:
    func = winograd(**settings)
    found = cycles(func, dataclasses.replace(ARCH, cores=cores))
    hints = sorted(found, key=found.__getitem__)
    assert len(set(hints)) == len(hints) > 3
    for hint in [*hints[:4], *hints[4 :: max(1, len(hints) // 8)]]:
        assert hint.parallel_loops == (cores > 1)
        assert emit(func, hint)


def test_the_policy_ranks_it_and_falls_back() -> None:
    templates = [hint.template for hint in DefaultPolicy(winograd(), ARCH).emit_config(10**6)]
    assert templates[0] == "winograd"
    assert set(templates) == {"winograd", "fallback"}


def test_other_functions_have_no_such_form() -> None:
    assert isinstance(match_winograd(convolution(padding=1)), Refusal)


def test_tiles_of_another_core_are_dear() -> None:
    """When cores transform the data by rows, the GEMM is best split by rows."""
    found = cycles(winograd(size=56))
    rows = {
        h: c
        for h, c in found.items()
        if not h.producer_depth and h.l2_block[0] == 2 and h.l2_block[2] == 32
    }
    by_channel = {
        dataclasses.replace(h, loop_order=(0, 1, 2)): c for h, c in rows.items() if h.loop_order[0]
    }
    assert by_channel
    for hint, dear in by_channel.items():
        assert rows[hint] < dear


def test_large_tiles_save_arithmetic() -> None:
    assert min(cycles(winograd(size=56)).values()) < min(cycles(winograd(size=56, m=2)).values())
    direct = DefaultPolicy(convolution(56, 64, 64, padding=1), ARCH).cycles
    assert min(cycles(winograd(size=56)).values()) < direct
