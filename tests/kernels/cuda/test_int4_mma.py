"""int4 GEMV with tensor cores: matching functions, results, refusals."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx

from benchmarks.cuda_rows import row
from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda.functions import computed, int4_product, product
from tests.kernels.cuda.serial import H200, cuda_source, hint
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ArtifactError
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.int4.form import prepare_int4
from tvmopt.kernels.cuda.toolchain.dependent_launch import WAIT_STATEMENT
from tvmopt.kernels.emit import NotApplicable, emit, emit_kernel
from tvmopt.kernels.policies import DefaultPolicy


def _hint(block: int, warp: int, share: int, stages: int, **fields: object) -> CudaHint:
    sizes = {"tile": block, "warp_tile": warp, "reduce_warps": share, "stages": stages}
    return hint("gpu_int4", **sizes, **fields)


_CONSTANTS = {"layout_free_buffers": [1, 2]}


def _problem(batch: int, rows: int, depth: int, group: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return activation, words and scales, and the float64 result."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (batch, depth)).astype(np.float16)
    words = rng.integers(0, 2**32, (rows, depth // 8), np.uint32)
    scales = (2.0 ** rng.integers(-3, 2, (rows, depth // group))).astype(np.float16)
    values = (words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.float64) - 8
    weight = values.reshape(rows, depth) * np.repeat(scales.astype(np.float64), group, axis=1)
    return [x, words, scales], x.astype(np.float64) @ weight.T


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_form_of_a_product(dtype: str, whole: bool) -> None:
    form = prepare_int4(int4_product(3, 40, 512, 64, dtype, whole))
    assert form is not None
    assert (form.batch, form.rows, form.depth, form.group, form.offset) == (3, 40, 512, 64, 8)
    listed = prepare_int4(row("gemv_i4-64-256-float16").func)
    assert listed is not None and listed.batch == 1 and listed.row is None


@pytest.mark.parametrize(
    "func",
    [
        int4_product(9, 40, 512, 64),  # more rows than the instruction has columns
        int4_product(1, 40, 520, 8),  # pieces of 16 bytes would not be aligned
        int4_product(1, 40, 512, 8),  # groups smaller than the load of a lane
        product(1, 40, 512),
    ],
)
def test_others_are_refused(func: tirx.PrimFunc) -> None:
    assert prepare_int4(func) is None
    with pytest.raises(NotApplicable):
        emit(func, _hint(16, 16, 4, 2))


def test_other_orders_of_a_words_values_are_refused() -> None:
    func = int4_product(1, 16, 256, 32)

    def turn(mod: tirx.FloorMod) -> object:
        return 7 - mod if int(mod.b) == 8 else mod

    other = func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloorMod, turn), order="post"))
    assert prepare_int4(func) is not None and prepare_int4(other) is None


@pytest.mark.parametrize(
    "one",
    [
        _hint(16, 16, 4, 1),  # no stage would be in flight
        _hint(24, 16, 4, 2),
        _hint(64, 64, 4, 2),
        _hint(512, 16, 2, 2),  # more threads than a block may have
        _hint(128, 16, 4, 8),  # more shared memory than an SM has
    ],
)
def test_hints_that_do_not_fit_are_refused(one: CudaHint) -> None:
    with pytest.raises(NotApplicable, match="gpu_int4: "):
        emit(int4_product(1, 1024, 16384, 128), one)


def test_older_gpus_have_no_such_instruction() -> None:
    func = int4_product(1, 64, 1024, 128)
    assert "gpu_int4" not in {
        r.hint.template for r in DefaultPolicy(func, GPUS["nvidia-t4"]).ranked
    }
    assert "gpu_int4" in {r.hint.template for r in DefaultPolicy(func, H200).ranked}


def test_what_follows_the_sum_is_kept() -> None:
    def make(x: te.Tensor, words: te.Tensor, bias: te.Tensor) -> te.Tensor:
        def weight(j: te.Var, r: te.Var) -> object:
            word = words[j, r // 8] >> (r % 8 * 4).astype("int32")
            return (word & tirx.const(15, "int32")).astype("float16") - tirx.const(8, "float16")

        r = te.reduce_axis((tirx.IntImm("int64", 0), x.shape[1]), "r")

        def element(i: te.Var, j: te.Var) -> object:
            return te.sum(x[i, r].astype("float32") * weight(j, r).astype("float32"), axis=r)

        total = te.compute((x.shape[0], words.shape[0]), element, name="total")
        return te.compute(
            total.shape,
            lambda i, j: te.max(total[i, j] + bias[j], tirx.const(0, "float32")),
            name="stored",
        )

    func = computed(make, ((2, 256), "float16"), ((48, 32), "int32"), ((48,), "float32"))
    form = prepare_int4(func)
    assert form is not None and form.scales is None and form.group == 256
    code = cuda_source(emit_kernel(func, _hint(16, 16, 4, 2)))
    assert re.search(r"max\(\(total_ptr\[0\] \+ \w+_ptr\[", code)
    assert "mma.sync.aligned.m16n8k16" in code and "cp.async" in code


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("sizes", "one"),
    [
        ((1, 40, 512, 128), _hint(16, 16, 2, 2)),
        ((1, 33, 1024, 32), _hint(32, 32, 4, 3)),
        ((3, 40, 768, 64), _hint(32, 16, 2, 2)),
        ((8, 16, 288, 32), _hint(16, 16, 4, 4)),  # a partial last stage
        ((1, 70, 1536, 256), _hint(64, 32, 2, 3)),
        ((2, 20, 800, 800), _hint(16, 16, 1, 6)),  # a scale a row; warps without a last stage
        ((1, 16, 160, 32), _hint(16, 16, 4, 2)),
        ((1, 17, 576, 96), _hint(16, 16, 2, 3)),
    ],
)
def test_what_is_computed_stays(sizes: tuple[int, int, int, int], one: CudaHint) -> None:
    func = int4_product(*sizes)
    inputs, want = _problem(*sizes)
    empty = np.full(want.shape, np.nan, func.params[-1].dtype)
    for order in ORDERS:
        [got] = run(emit_kernel(func, one), inputs, [empty], H200, order=order)
        np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 33, 1024, 32), (2, 40, 768, 64)])
def test_constant_weights_are_loaded_before_the_kernel_before_has_ended(
    sizes: tuple[int, int, int, int], order: str
) -> None:
    func = int4_product(*sizes).with_attrs(_CONSTANTS)
    inputs, want = _problem(*sizes)
    kernel = emit_kernel(func, _hint(16, 16, 4, 3))
    code = build_kernels({"main": kernel}, H200).imports[0].inspect_source()
    body = code[code.index("void tvmopt_int4_") :]
    load, wait, x = (body.index(text) for text in ("load(d);", WAIT_STATEMENT, "__ldg(x"))
    assert load < wait < x and code.count(WAIT_STATEMENT) == 1
    empty = np.full(want.shape, np.nan, func.params[-1].dtype)
    [got] = run(kernel, inputs, [empty], H200, order=order)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("attrs", [{}, {"layout_free_buffers": [1]}])
def test_weights_that_a_kernel_may_write_are_loaded_after_it(attrs: dict[str, list[int]]) -> None:
    kernel = emit_kernel(int4_product(1, 33, 1024, 32).with_attrs(attrs), _hint(16, 16, 4, 3))
    code = build_kernels({"main": kernel}, H200).imports[0].inspect_source()
    assert code.count(WAIT_STATEMENT) == 1
    kernel_code = code[code.index("__global__") :]
    wait = kernel_code.index("tvmopt_wait_for_kernel_before();")
    assert wait < kernel_code.index("tvmopt_int4_")  # before the device function runs


@pytest.mark.sample(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("sizes", "one"),
    [
        ((2, 40, 800, 32), _hint(32, 32, 2, 3)),  # partial stages
        ((1, 100, 512, 128), _hint(112, 16, 1, 6)),  # two stages, a ring of six
        ((1, 130, 1024, 128), _hint(112, 16, 2, 3)),
    ],
)
def test_tiles_of_any_number_of_warps(
    sizes: tuple[int, int, int, int], one: CudaHint, order: str
) -> None:
    func = int4_product(*sizes)
    inputs, want = _problem(*sizes)
    empty = np.full(want.shape, np.nan, func.params[-1].dtype)
    [got] = run(emit_kernel(func, one), inputs, [empty], H200, order=order)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize(
    ("rows", "depth"), [(6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336)]
)
def test_the_first_choice_for_a_decoder_fills_all_sms_with_enough_warps(
    rows: int, depth: int
) -> None:
    func = int4_product(1, rows, depth, 128)
    h100 = GPUS["nvidia-h100"]  # where such tiles were measured
    first = next(r.hint for r in DefaultPolicy(func, h100).ranked if r.hint.template == "gpu_int4")
    config = first.to_dict()
    assert 120 <= -(-rows // config["tile"]) <= h100.sms
    assert config["tile"] // config["warp_tile"] * config["reduce_warps"] >= 8


def test_gpus_without_dependent_launches_do_not_wait() -> None:
    func, config = int4_product(1, 33, 1024, 32), _hint(16, 16, 4, 3)
    a100 = dataclasses.replace(config, arch=GPUS["nvidia-a100"])
    assert "griddepcontrol" not in cuda_source(emit_kernel(func, a100))


def test_the_emulator_finds_loads_of_other_arrays_before_the_wait() -> None:
    func = int4_product(1, 33, 1024, 32).with_attrs(_CONSTANTS)
    inputs, want = _problem(1, 33, 1024, 32)
    kernel = emit_kernel(func, _hint(16, 16, 4, 3)).with_attr("layout_free_buffers", [2])
    empty = np.full(want.shape, np.nan, func.params[-1].dtype)
    with pytest.raises(ArtifactError, match="before the previous kernel has ended"):
        run(kernel, inputs, [empty], H200)
