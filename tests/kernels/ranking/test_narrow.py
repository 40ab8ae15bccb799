"""Ranking of int8 and bfloat16 workloads: the CPU's dot-product instructions come first."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tvm import relax, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.intrinsics import find_tile
from tvmopt.kernels.cpu.matrix_tile.space import step_cycles
from tvmopt.kernels.emit import hint_from_dict
from tvmopt.kernels.exact_pairs import EXACT_PAIRS
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.workload import Refusal
from tvmopt.transform.lower import lower

op, nn = relax.op, relax.op.nn
# With fitted bandwidths, so that the tests do not depend on the machine.
BANDWIDTHS = {
    "l1_bandwidth": 64.0, "l2_bandwidth": 48.0, "l3_bandwidth": 20.0, "dram_bandwidth": 8.0,
}  # fmt: skip
SPECS = {
    name: resolve_target(name, 2)
    for name in ("znver3", "znver4", "sapphirerapids", "skylake-avx512")
}
ARCHS: dict[str, CpuArch] = {
    name: dataclasses.replace(spec.arch(), **BANDWIDTHS) for name, spec in SPECS.items()
}
BYTES, HALVES = ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")


def function(cpu: str, build, *operands) -> tirx.PrimFunc:
    """Return the only function of ``build``, with an input and constant weights."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(*o)) for n, o in enumerate(operands)]
    with builder.function("main", params, {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(out)
    mod = lower(builder.get(), SPECS[cpu].to_tvm())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


def matmul(cpu: str, types=BYTES, rows=64, depth=128, columns=96) -> tirx.PrimFunc:
    data, weight, sums = types
    operands = ((rows, depth), data), ((depth, columns), weight)
    return function(cpu, lambda x, w: op.matmul(x, w, out_dtype=sums), *operands)


def convolution(cpu: str, types=BYTES, size=14, channels=64, outputs=64) -> tirx.PrimFunc:
    data, weight, sums = types
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return function(
        cpu,
        lambda x, w: nn.conv2d(x, w, **layout, out_dtype=sums),
        ((1, size, size, channels), data),
        ((3, 3, channels, outputs), weight),
    )


@pytest.mark.parametrize("make", [matmul, convolution])
@pytest.mark.parametrize(
    ("cpu", "types", "template", "intrinsic"),
    [
        ("znver4", BYTES, "register_tile", "tvmopt.vnni_512"),
        ("znver4", HALVES, "register_tile", "tvmopt.avx512_bf16"),
        ("sapphirerapids", BYTES, "matrix_tile", "tvmopt.amx_u8s8"),
        ("sapphirerapids", HALVES, "matrix_tile", "tvmopt.amx_bf16"),
        ("skylake-avx512", BYTES, "register_tile", "tvmopt.pmaddwd_512"),
        ("znver3", BYTES, "register_tile", "tvmopt.pmaddwd_256"),
    ],
)
def test_the_first_choice(make, cpu, types, template, intrinsic) -> None:
    func = make(cpu, types)
    first = DefaultPolicy(func, ARCHS[cpu]).emit_config(1)[0]
    assert (first.template, first.intrinsic) == (template, intrinsic)


@pytest.mark.parametrize("types", [BYTES, HALVES])
def test_every_register_tile_has_the_instruction(types) -> None:
    hints = [r.hint for r in DefaultPolicy(matmul("znver4", types), ARCHS["znver4"]).ranked]
    tiles = [hint for hint in hints if hint.template == "register_tile"]
    assert len(tiles) > 3
    assert all(hint.intrinsic and hint.packing == "prepacked" for hint in tiles)


def test_where_there_are_tiles_there_are_vectors_too() -> None:
    ranked = DefaultPolicy(convolution("sapphirerapids"), ARCHS["sapphirerapids"]).ranked
    found = {(r.hint.template, getattr(r.hint, "intrinsic", "")) for r in ranked}
    assert ("matrix_tile", "tvmopt.amx_u8s8") in found
    assert ("register_tile", "tvmopt.vnni_512") in found


@pytest.mark.parametrize("types", [BYTES, HALVES])
def test_an_instruction_is_modelled_to_cost_less(types) -> None:
    """It computes two or four products per lane, and loads a half or a fourth of the weight."""
    func = matmul("znver4", types, 128, 256, 128)
    cycles = [
        DefaultPolicy(func, ARCHS[cpu]).cycles for cpu in ("skylake-avx512", "znver4")
    ]  # fmt: skip
    assert cycles[1] < cycles[0] / 1.5


def test_widening_is_modelled_to_cost_more_than_float32() -> None:
    """In L1, it takes more instructions than float32, and saves no time of traffic."""
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO", "groups": 4}

    def cycles(dtype: str) -> float:
        func = function(
            "sapphirerapids",
            lambda x, w: nn.conv2d(x, w, **layout, out_dtype="float32"),
            ((1, 28, 28, 136), dtype),
            ((1, 1, 34, 136), dtype),
        )
        return DefaultPolicy(func, ARCHS["sapphirerapids"]).cycles

    # 8 broadcasts, and 3 vectors of the weight at 2 instructions, beside 24 FMAs on the same ports.
    assert 1.05 < cycles("bfloat16") / cycles("float32") < 38 / 24


def test_tiles_are_modelled_to_cost_less_than_vectors() -> None:
    func = convolution("sapphirerapids", BYTES, 28, 128, 128)
    ranked = DefaultPolicy(func, ARCHS["sapphirerapids"]).ranked
    best = {
        name: min(r.cycles for r in ranked if r.hint.template == name)
        for name in ("matrix_tile", "register_tile")
    }
    assert best["matrix_tile"] < best["register_tile"] / 2


@pytest.mark.parametrize(
    ("types", "depth", "used"),
    [(BYTES, 4, False), (BYTES, 3, False), (BYTES, 8, True), (HALVES, 2, False), (HALVES, 4, True)],
)  # fmt: skip
def test_one_group_of_products_is_no_reduction(types, depth, used) -> None:
    """TVM drops a K loop of extent 1, and then finds no reduction to tensorize."""
    data, weight, sums = types
    group = 4 if data == "uint8" else 2
    shapes = ((8, -(-depth // group) * group), data), ((-(-depth // group) * group, 32), weight)
    func = function("znver4", lambda x, w: op.matmul(x, w, out_dtype=sums), *shapes)
    form = match_contraction(func)
    assert not isinstance(form, Refusal)
    assert (form.dot(ARCHS["znver4"]) is not None) == used
    first = DefaultPolicy(func, ARCHS["znver4"]).emit_config(1)[0]
    assert bool(first.intrinsic) == used


@pytest.mark.parametrize("depth", [8, 12, 16, 64, 256])
def test_a_short_sum_gets_a_step_that_divides_it(depth) -> None:
    """A step has at most 64 bytes; for a short K, tiles are as narrow as K."""
    func = matmul("sapphirerapids", BYTES, 64, depth, 64)
    form = match_contraction(func, collapse=False)
    assert not isinstance(form, Refusal)
    tile = form.tile(ARCHS["sapphirerapids"])
    assert tile is not None
    assert tile.kbytes == min(depth, 64)
    assert depth % tile.block_k == 0


@pytest.mark.parametrize(
    ("channels", "kernel", "dilation", "taps", "nbytes"),
    [(4, 7, 1, 7, 28), (16, 3, 1, 3, 48), (16, 5, 1, 0, 16), (32, 3, 1, 0, 32), (8, 3, 2, 0, 8)],
)
def test_a_step_has_the_columns_of_a_kernel_that_fill_it(
    channels, kernel, dilation, taps, nbytes
) -> None:
    """The data of neighbouring columns is contiguous, unless they are dilated."""
    func = function(
        "sapphirerapids",
        lambda x, w: op.nn.conv2d(
            x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32", dilation=dilation
        ),
        ((1, 24, 24, channels), "uint8"),
        ((kernel, kernel, channels, 32), "int8"),
    )
    form = match_contraction(func, collapse=False)
    assert not isinstance(form, Refusal)
    tile = form.tile(ARCHS["sapphirerapids"])
    assert tile is not None
    assert (tile.taps, tile.kbytes) == (taps, nbytes)


def test_rows_that_cross_cache_lines_take_longer_to_load() -> None:
    tile = find_tile(ARCHS["sapphirerapids"], "uint8", "int8")
    assert tile is not None
    one = dataclasses.replace(tile, row_blocks=1, column_blocks=1)
    assert step_cycles(one, 16) > step_cycles(one, 64) == step_cycles(one, 128)
    assert step_cycles(dataclasses.replace(one, kbytes=16), 16) <= step_cycles(one, 64)


def test_a_step_of_tiles_costs_more_with_more_tiles() -> None:
    tile = find_tile(ARCHS["sapphirerapids"], "uint8", "int8")
    assert tile is not None
    one = dataclasses.replace(tile, row_blocks=1, column_blocks=1)
    small = dataclasses.replace(tile, rows=4)
    assert step_cycles(one) < step_cycles(tile)
    assert step_cycles(small) < step_cycles(tile)
    # But a multiply costs less, because each loaded tile is used twice.
    assert step_cycles(tile) / 4 < step_cycles(one)


def test_tiles_of_rows_that_do_not_divide_a_line_overlap() -> None:
    """19 rows: two tiles of 10, or of 16, as few as possible."""
    ranked = DefaultPolicy(convolution("sapphirerapids", size=21), ARCHS["sapphirerapids"]).ranked
    heights = {r.hint.register_tile[-2] for r in ranked if r.hint.template == "matrix_tile"}
    assert heights == {1, 2, 10, 16}
    assert ranked[0].hint.register_tile[-2] in (10, 16)


def test_rows_of_a_matmul_need_not_divide() -> None:
    func = matmul("sapphirerapids", rows=37)
    ranked = DefaultPolicy(func, ARCHS["sapphirerapids"]).ranked
    heights = {r.hint.register_tile[0] for r in ranked if r.hint.template == "matrix_tile"}
    assert {1, 16, 32} <= heights
    assert max(heights) <= 32


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_hints_survive_json(cpu) -> None:
    names = set()
    for ranked in DefaultPolicy(convolution(cpu), ARCHS[cpu]).ranked[::7]:
        text = json.dumps(ranked.hint.to_dict())
        again = hint_from_dict(json.loads(text))
        assert again == ranked.hint
        assert again.config_id == ranked.hint.config_id
        intrinsic = json.loads(text).get("intrinsic", "")
        if intrinsic:
            assert f"intrinsic={intrinsic}" in str(ranked.hint)
        names.add(intrinsic)
    assert "tvmopt.vnni_512" in names
    assert ("tvmopt.amx_u8s8" in names) == (cpu == "sapphirerapids")


def test_the_intrinsic_is_a_part_of_the_configuration() -> None:
    hint = DefaultPolicy(matmul("znver4"), ARCHS["znver4"]).emit_config(1)[0]
    assert hint.intrinsic
    plain = dataclasses.replace(hint, intrinsic="")
    assert plain != hint
    assert plain.config_id != hint.config_id


def test_rows_of_split_dot_products_divide_the_pixels() -> None:
    """A row that a bounds check guards keeps its accumulators in memory."""
    func = matmul("znver3", rows=112 * 112, depth=16, columns=96)
    func = func.with_attr(EXACT_PAIRS, True)
    first = DefaultPolicy(func, ARCHS["znver3"]).emit_config(1)[0]
    assert first.intrinsic == "tvmopt.pmaddubsw_256"
    assert 112 * 112 % first.register_tile[0] == 0


def test_channels_of_a_byte_window_are_not_the_outer_loop() -> None:
    """Each pass over the image would read all its cache lines for 8 of their 64 bytes."""
    layout = {"data_layout": "NHWC", "kernel_layout": "HWOI"}
    func = function(
        "znver3",
        lambda x, w: nn.conv2d(x, w, strides=2, padding=1, groups=96, **layout, out_dtype="int32"),
        ((1, 112, 112, 96), "uint8"),
        ((3, 3, 96, 1), "int8"),
    )
    ranked = DefaultPolicy(func, ARCHS["znver3"]).ranked
    windows = [r for r in ranked if r.hint.template == "window"]
    assert windows
    assert windows[0].hint.loop_order[1] != 3


def test_one_row_is_not_worth_the_configuration_of_tiles() -> None:
    """A convolution of one pixel took five times as long by AMX as in float32."""
    arch = ARCHS["sapphirerapids"]
    few, many = (matmul("sapphirerapids", HALVES, rows, 88, 32) for rows in (1, 256))
    assert DefaultPolicy(few, arch).ranked[0].hint.template != "matrix_tile"
    assert DefaultPolicy(many, arch).ranked[0].hint.template == "matrix_tile"
