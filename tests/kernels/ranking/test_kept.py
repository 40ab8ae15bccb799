"""Rankings and analyses that are kept: for equal functions once, and never shared by mistake."""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax, s_tir

from tests.kernels.cuda.functions import lowered
from tests.kernels.ranking.functions import ARCH, matmul
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cpu.common.nest import only_reduction
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import DefaultPolicy, policy_of
from tvmopt.kernels.shared_packing import PACKED_TILE
from tvmopt.kernels.workload import Refusal


def test_functions_of_equal_structure_are_ranked_once() -> None:
    first, second = matmul(), matmul()
    assert not first.same_as(second)
    assert policy_of(first, ARCH).ranking is policy_of(second, ARCH).ranking
    assert policy_of(first, ARCH).ranking is not policy_of(matmul(columns=80), ARCH).ranking
    other = dataclasses.replace(ARCH, l2_bandwidth=32.0)
    assert policy_of(first, ARCH).ranking is not policy_of(first, other).ranking


def test_functions_of_equal_structure_are_scheduled_once() -> None:
    once = schedule_function(matmul(), ARCH)
    assert schedule_function(matmul(), ARCH) is once
    assert schedule_function(matmul(columns=80), ARCH) is not once
    assert schedule_function(matmul(), dataclasses.replace(ARCH, l2_bandwidth=32.0)) is not once


def test_a_ranking_is_kept_for_its_cost_parameters_only() -> None:
    gpu = GPUS["nvidia-h200"]
    costs = dataclasses.replace(gpu.costs, row_launch_cycles=2 * gpu.costs.row_launch_cycles)
    changed = dataclasses.replace(gpu, costs=costs)
    assert changed == gpu  # hints and tuning records of both name the same GPU
    func = lowered(lambda x: relax.op.nn.softmax(x, -1), ((64, 1000), "float16"))
    plain, other = (policy_of(func, arch).ranked[0] for arch in (gpu, changed))
    assert other.cycles > plain.cycles


def test_a_packed_tile_selects_from_the_kept_ranking() -> None:
    func = matmul()
    every = {one.hint.packed_tile for one in policy_of(func, ARCH).ranked}
    assert len(every) > 1
    for tile in sorted(every - {""}):
        noted = func.with_attr(PACKED_TILE, tile)
        assert {one.hint.packed_tile for one in policy_of(noted, ARCH).ranked} == {tile}
    assert {one.hint.packed_tile for one in policy_of(func, ARCH).ranked} == every


def test_a_schedule_that_is_changed_leaves_the_kept_one_alone() -> None:
    func = matmul()

    def normalised() -> tuple[s_tir.Schedule, object]:
        found = only_reduction(func)
        assert not isinstance(found, Refusal)
        return found

    sch, anchor = normalised()
    before = sch.mod
    sch.parallel(sch.get_loops(anchor)[0])
    again, same = normalised()
    tvm.ir.assert_structural_equal(again.mod, before)
    assert len(again.get_loops(same)) == len(sch.get_loops(anchor))


def test_emitting_twice_gives_equal_kernels() -> None:
    func = matmul()
    for one in DefaultPolicy(func, ARCH).ranked[:8]:
        tvm.ir.assert_structural_equal(emit_kernel(func, one.hint), emit_kernel(func, one.hint))
