"""The contract of dot-product intrinsics: right results, by the instruction, for any tile shape.

An instruction that this CPU lacks runs under emulation. No emulator has AVX-VNNI-INT8, so the test
only counts its instructions.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import s_tir

from tests import emulator
from tests.kernels.cpu.intrinsics.dense import LONGER, Dense, arch_of, cannot_run, runs_natively
from tvmopt.device import dtypes
from tvmopt.device.features import required_cpu_flags
from tvmopt.device.target import resolve_target
from tvmopt.errors import ArtifactError
from tvmopt.kernels.cpu.intrinsics import DOTS, DotIntrinsic, dot_named, find_dot, multipliable
from tvmopt.kernels.cpu.intrinsics.choose import TILES, wants_exact_pairs

EVERY = [pytest.param(dot, id=dot.name) for dot in DOTS]
NATIVE = [dot for dot in DOTS if runs_natively(dot)]
#: Tolerance relative to the sum of absolute terms, because float32 rounds at each step.
TOLERANCE = 2e-6


@pytest.fixture(params=EVERY)
def runnable(request: pytest.FixtureRequest) -> DotIntrinsic:
    """Each intrinsic that runs here, natively or emulated."""
    return _runnable(request.param)


@pytest.fixture(params=[param for param in EVERY if param.values[0].accumulator == "int32"])
def integer(request: pytest.FixtureRequest) -> DotIntrinsic:
    """Each runnable intrinsic with an exact (integer) accumulator."""
    return _runnable(request.param)


def _runnable(dot: DotIntrinsic) -> DotIntrinsic:
    reason = cannot_run(dot)
    if reason:
        pytest.skip(reason)
    return dot


def assert_right(dense: Dense, got: np.ndarray, operands: tuple[np.ndarray, ...]) -> None:
    expected = dense.expected(*operands)
    if dense.dot.accumulator == "int32":
        np.testing.assert_array_equal(got, expected)
    else:
        size = dense.expected(*(np.abs(x) for x in operands))
        assert np.all(np.abs(got - expected) <= TOLERANCE * size)


@pytest.mark.sample(12)
@pytest.mark.parametrize("unrolled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_numbers(runnable, unrolled):
    dense = Dense(runnable)
    operands = dense.operands()
    assert_right(dense, dense.run(dense.built(unrolled), operands), operands)


@pytest.mark.sample(6)
@pytest.mark.parametrize("end", ["min", "max"])
def test_ends_of_the_ranges(integer, end):
    dense = Dense(integer)
    operands = tuple(
        np.full_like(x, getattr(np.iinfo(x.dtype), other))
        for x, other in zip(dense.operands(), (end, "min" if end == "max" else "max", end),
                            strict=True)
    )  # fmt: skip
    if integer.exact_pairs_only:
        operands[1][:] = 64 if end == "min" else -64
    assert_right(dense, dense.run(dense.built(), operands), operands)


@pytest.mark.sample(5)
@pytest.mark.parametrize("dot", EVERY)
def test_every_product_is_the_instructions(dot):
    dense = Dense(dot)
    assembly = dense.built(unrolled=True).inspect_source("asm")
    found = re.findall(rf"\b{re.escape(dot.instruction)}\b", assembly)
    assert len(found) == dense.instructions * (1 if dot.exact_pairs_only else dot.multiplies)


@pytest.mark.parametrize("weights", [(127, 2), (-64, -65)])
def test_a_pair_beyond_int16_saturates(weights):
    """Therefore ``find_dot`` needs to know that pairs are exact."""
    dense = Dense(_runnable(dot_named("tvmopt.pmaddubsw_256")))
    data, weight, sums = dense.operands()
    data[:], weight[:] = 255, 0
    weight[..., :2] = weights
    operands = data, weight, sums
    with pytest.raises(AssertionError):
        assert_right(dense, dense.run(dense.built(), operands), operands)


@pytest.mark.sample(5)
def test_another_weight_gives_other_numbers(runnable):
    dense = Dense(runnable)
    data, weight, sums = dense.operands()
    other = weight.copy()
    other[-1, -1, -1, -1] += 3
    assert not np.array_equal(weight, other)
    lib = dense.built()
    with pytest.raises(AssertionError):
        assert_right(dense, dense.run(lib, (data, other, sums)), (data, weight, sums))


@pytest.mark.skipif(not NATIVE, reason="this CPU has none of the intrinsics")
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.data(), seed=st.integers(0, 2**32 - 1))
def test_any_number_of_tiles(drawn, seed):
    dense = Dense(
        drawn.draw(st.sampled_from(NATIVE)),
        rows=drawn.draw(st.integers(1, 5)),
        row_tiles=drawn.draw(st.integers(1, 4)),
        column_tiles=drawn.draw(st.integers(1, 4)),
        depth_tiles=drawn.draw(st.integers(1, 9)),
    )
    operands = dense.operands(seed)
    assert_right(dense, dense.run(dense.built(), operands), operands)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        ("tvmopt.sdot", "cortex-a53"),
        ("tvmopt.udot", "cortex-a72"),
        ("tvmopt.usdot", "cortex-a76"),
        ("tvmopt.rvv_128_s8s8", "rv64,v=false"),
    ],
)
def test_a_cpu_without_it_dies_of_an_illegal_instruction(name, cpu):
    dense = Dense(_runnable(dot_named(name)))
    data, weight, sums = dense.operands()
    with pytest.raises(ArtifactError, match=f"-cpu {re.escape(cpu)} died of an illegal instr"):
        emulator.run(dense.built(), [data, weight, sums], [sums], dense.dot.isa, cpu=cpu)


def test_shorter_registers_than_needed_give_wrong_numbers():
    """Therefore ``find_dot`` needs the vector length among the features."""
    dense = Dense(_runnable(dot_named("tvmopt.rvv_256_u8s8")))
    operands = dense.operands()
    [got] = emulator.run(dense.built(), operands, [operands[2]], "riscv64")
    with pytest.raises(AssertionError):
        assert_right(dense, got, operands)


def test_longer_registers_than_needed_do_no_harm():
    dense = Dense(_runnable(dot_named("tvmopt.rvv_128_u8s8")))
    operands = dense.operands()
    [got] = emulator.run(dense.built(), operands, [operands[2]], "riscv64", cpu=LONGER["zvl256b"])
    assert_right(dense, got, operands)


@pytest.mark.parametrize("dot", EVERY)
def test_the_smallest_cpu_that_has_it_is_given_it(dot):
    found = find_dot(arch_of(dot), dot.data, dot.weight, dot.exact_pairs_only)
    assert found is not None
    assert (found.isa, found.data, found.weight) == (dot.isa, dot.data, dot.weight)
    assert DOTS.index(found) <= DOTS.index(dot)
    assert found.features == dot.features


@pytest.mark.parametrize(
    ("cpu", "types", "name"),
    [
        ("sapphirerapids", ("uint8", "int8"), "tvmopt.vnni_512"),
        ("alderlake", ("uint8", "int8"), "tvmopt.vnni_256"),
        ("graniterapids", ("int8", "int8"), None),
        ("sierraforest", ("int8", "int8"), "tvmopt.vnni_s8s8"),
        ("sierraforest", ("uint8", "uint8"), "tvmopt.vnni_u8u8"),
        ("haswell", ("uint8", "int8"), "tvmopt.pmaddwd_256"),
        ("haswell", ("int8", "int8"), None),
        ("skylake-avx512", ("uint8", "int8"), "tvmopt.pmaddwd_512"),
        ("x86-64", ("uint8", "int8"), None),
        ("graviton3", ("uint8", "int8"), "tvmopt.usdot"),
        ("cortex-a76", ("uint8", "int8"), None),
        ("cortex-a76", ("int8", "int8"), "tvmopt.sdot"),
        ("raspberry-pi-4", ("int8", "int8"), None),
        ("hexagon-v68", ("uint8", "uint8"), "tvmopt.vrmpy_u8u8"),
        ("hexagonv68", ("uint8", "uint8"), None),
        ("riscv64-rvv", ("uint8", "int8"), "tvmopt.rvv_128_u8s8"),
        ("spacemit-k1", ("uint8", "int8"), "tvmopt.rvv_256_u8s8"),
        ("sifive-u74", ("uint8", "int8"), None),
    ],
)
def test_best_of_a_cpu(cpu, types, name):
    found = find_dot(resolve_target(cpu).arch(), *types)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("haswell", "tvmopt.pmaddubsw_256"),
        ("skylake-avx512", "tvmopt.pmaddubsw_512"),
        ("alderlake", "tvmopt.vnni_256"),
        ("cascadelake", "tvmopt.vnni_512"),
    ],
)
def test_exact_pairs_need_no_shifts(cpu, name):
    found = find_dot(resolve_target(cpu).arch(), "uint8", "int8", exact_pairs=True)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "cpu", ["haswell", "znver3", "znver4", "skylake-avx512", "cascadelake", "alderlake",
            "sapphirerapids", "x86-64", "graviton3", "hexagon-v68"]
)  # fmt: skip
def test_the_quantiser_scales_pairs_where_kernels_want_them(cpu):
    target = resolve_target(cpu)
    assert (target.int8_operands == "u8s8-pairs") is wants_exact_pairs(target.to_tvm())


def test_nothing_is_registered_before_it_is_used(run_python):
    code = (
        "from tvmopt.kernels.cpu.intrinsics import DOTS; from tvm import s_tir\n"
        "print([s_tir.TensorIntrin.get(d.name, allow_missing=True) for d in DOTS])"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([None] * len(DOTS))


@pytest.mark.parametrize("dot", EVERY)
def test_registered_once(dot):
    assert dot.register() == dot.name
    first = s_tir.TensorIntrin.get(dot.name)
    assert dot.register() == dot.name
    assert s_tir.TensorIntrin.get(dot.name).same_as(first)


def test_names_are_unique():
    assert len({dot.name for dot in DOTS}) == len(DOTS)
    for dot in DOTS:
        assert dot_named(dot.name) is dot


def test_the_table_of_dtypes_knows_what_each_instruction_of_x86_needs() -> None:
    """``int8_operands`` asks the table, since ``device`` may not import the instructions."""
    flags = [flag for flag, _ in dtypes.dtype("int8").cpu_rates]
    exact = flags[: flags.index("avx2")]
    for dot in [*DOTS, *TILES]:
        if dot.isa != "x86_64" or (dot.data, dot.weight) != ("uint8", "int8"):
            continue
        needed = required_cpu_flags(dot.isa, dot.features)
        target = dataclasses.replace(resolve_target("skylake"), cpu_flags=("avx2", *needed))
        adds_in_int32 = not getattr(dot, "exact_pairs_only", False)
        if dot.instruction != "vpmaddwd":  # exact, but slower: AVX2 alone prefers vpmaddubsw
            assert (target.int8_operands == "u8s8") is adds_in_int32, dot.name
            assert bool({*needed} & {*exact}) is adds_in_int32, dot.name


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("cooperlake", "tvmopt.avx512_bf16"), ("znver4", "tvmopt.avx512_bf16"),
        ("sapphirerapids", ""), ("graniterapids", ""), ("znver3", ""),
    ],
)  # fmt: skip
def test_cpus_with_amx_have_no_fast_dot_product_of_bfloat16(cpu: str, name: str):
    target = resolve_target(cpu)
    found = find_dot(target.arch(), "bfloat16", "bfloat16")
    assert (found.name if found else "") == name
    has_any = "amx-bf16" in target.arch().features() or bool(name)
    assert (("bfloat16", "bfloat16") in multipliable(target.to_tvm())) == has_any
