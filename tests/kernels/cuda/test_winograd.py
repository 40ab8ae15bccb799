"""Winograd transforms on CUDA: correct for any extents, in registers, with vector accesses."""

from __future__ import annotations

import math
import re
import shutil

import hypothesis
import numpy as np
import pytest
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, te, tirx

from tests.kernels.cuda.functions import computed
from tests.kernels.cuda.hopper.sources import compile_with_nvcc
from tests.kernels.cuda.serial import H200, hint, inputs_of, run, serial
from tests.kernels.cuda.winograd import Problem
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.winograd.schedule import prepare_data, prepare_out
from tvmopt.kernels.emit import emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.workload import Refusal
from tvmopt.transform.winograd_gpu import winograd_out

op, nn = relax.op, relax.op.nn
TEMPLATES = ("gpu_winograd_data", "gpu_winograd_out")
#: Rounding error of both steps of the input transform, relative to the largest element.
ROUNDED = 2e-6


def transforms(problem: Problem) -> dict[str, tirx.PrimFunc]:
    data, _, out = problem.functions()
    return dict(zip(TEMPLATES, (data, out), strict=True))


def scheduled(func: tirx.PrimFunc, one: CudaHint) -> tirx.PrimFunc:
    """Schedule ``func`` by the template; every loop has a constant extent."""
    made = emit(func, one).mod["main"]
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(made.body, (tirx.For, loops.append), order="post")
    assert all(isinstance(loop.extent, tirx.IntImm) for loop in loops)
    return made


def assert_right(problem: Problem, vector: int, tiles: int, threads: int) -> None:
    """Assert that both transforms, and the whole convolution, are correct."""
    data, _, out = problem.functions()
    values = {"vector_elements": vector, "tiles_per_thread": tiles, "threads": threads}
    image, residual = problem.inputs()
    there = run(serial(scheduled(data, hint(TEMPLATES[0], **values))), [image])
    plain = problem.transformed(image)
    np.testing.assert_allclose(there, plain, rtol=0, atol=ROUNDED * np.abs(plain).max())
    vector = vector if problem.outputs % vector == 0 else 1
    back = serial(scheduled(out, hint(TEMPLATES[1], **(values | {"vector_elements": vector}))))
    products = np.matmul(there, problem.transformed_weight())
    given = {products.shape: products, problem.bias.shape: problem.bias}
    given[residual.shape] = residual
    found = run(back, [given[tuple(int(e) for e in p.shape)] for p in back.params[:-1]])
    wanted = problem.wanted()
    scale = np.abs(wanted).max() + 1.0
    assert not np.isnan(found).any()
    assert np.abs(found - wanted).max() <= {2: 2e-6, 4: 1e-5}[problem.m] * scale


@hypothesis.settings(max_examples=7, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    m=st.sampled_from([2, 4]),
    batch=st.integers(1, 3),
    size=st.tuples(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 16]), st.sampled_from([1, 4, 11, 14])),
    channels=st.sampled_from([4, 5, 12, 16, 33]),
    outputs=st.sampled_from([4, 6, 7, 16]),
    padding=st.tuples(*[st.integers(1, 2)] * 4),
    vector=st.sampled_from([1, 2, 4]),
    tiles=st.sampled_from([1, 2, 3]),
    threads=st.sampled_from([32, 64, 96]),
    ending=st.booleans(),
)
def test_right_for_any_extents(
    m, batch, size, channels, outputs, padding, vector, tiles, threads, ending
) -> None:
    problem = Problem((batch, *size, channels), outputs, m, padding, ending)
    across = -(-problem.result[2] // m)
    assert_right(problem, math.gcd(channels, vector), tiles if across % tiles == 0 else 1, threads)


@pytest.mark.parametrize(("m", "channels", "outputs"), [(2, 4, 513), (4, 513, 4)])
def test_right_without_padding_and_for_many_channels(m, channels, outputs) -> None:
    assert_right(Problem((1, 7, 5, channels), outputs, m, (0, 0, 0, 0)), 1, 1, 64)


ENDS = {
    "sigmoid twice": lambda emit, y, r: op.multiply(emit(op.sigmoid(emit(op.add(y, r)))), r),
    "half": lambda emit, y, r: op.astype(emit(nn.relu(y)), "float16"),
    "bytes": lambda emit, y, r: op.astype(emit(op.clip(emit(op.round(y)), -128, 127)), "int8"),
    "comparison": lambda emit, y, r: op.greater(y, r),
    "nothing": lambda emit, y, r: op.multiply(y, relax.const(np.float32(1.5))),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ENDS)
def test_any_elementwise_end_is_fused(name) -> None:
    end = ENDS[name]
    _, _, out = Problem((1, 6, 5, 4), 8).functions(lambda b, y, r: end(b.emit, y, r))
    inputs = inputs_of(out)
    found = run(
        serial(
            scheduled(out, hint(TEMPLATES[1], vector_elements=4, tiles_per_thread=1, threads=32))
        ),
        inputs,
    )
    np.testing.assert_allclose(found.astype("float32"), run(out, inputs).astype("float32"), 1e-6)


def test_an_end_that_spreads_the_result_is_a_function_of_its_own() -> None:
    wide = relax.const(np.ones((3, 6, 5, 4), "float32"))
    lowered = Problem((1, 6, 5, 4), 4).lowered(lambda b, y, r: op.add(y, wide))
    names = [v.name_hint for v, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(names) == 4
    [out] = [lowered[name] for name in names if "winograd_out" in name]
    assert not isinstance(prepare_out(out), Refusal)


def test_a_result_spread_within_the_function_has_another_template() -> None:
    def spread(products, other):
        tiles = winograd_out(products, 4, (1, 6, 5))
        shape = (3, 6, 5, 4)
        return te.compute(shape, lambda b, y, x, o: tiles[0, y, x, o] + other[b, y, x, o])

    out = computed(spread, ((36, 4, 4), "float32"), ((3, 6, 5, 4), "float32"))
    assert isinstance(prepare_out(out), Refusal)
    made = schedule_function(out, H200)
    assert made.hint is not None, made.rule
    inputs = inputs_of(out)
    np.testing.assert_allclose(run(serial(made.func), inputs), run(out, inputs), 1e-6)


def sources(problem: Problem, **values: object) -> dict[str, str]:
    """Return the CUDA source of both transforms."""
    return {
        name: build_kernels({"main": finish(scheduled(func, hint(name, **values)), func)}, H200)
        .imports[0]
        .inspect_source("cuda")
        for name, func in transforms(problem).items()
    }


@pytest.mark.parametrize("m", [2, 4])
def test_every_input_is_read_once_and_by_vectors(m) -> None:
    problem = Problem((2, 13, 14, 8), 12, m)
    code = sources(problem, vector_elements=4, tiles_per_thread=1, threads=64)
    points = (m + 2) ** 2
    loads = {name: re.findall(r"= \*\(float4\*\)\((\w+)_ptr", code[name]) for name in code}
    stores = {name: re.findall(r"^ *\*\(float4\*\)\((\w+)_ptr", code[name], re.M) for name in code}
    there = loads["gpu_winograd_data"]
    assert there.count("x") == points
    assert stores["gpu_winograd_data"].count("winograd_tiles") == points
    back = loads["gpu_winograd_out"]
    assert back.count("lv1") == points
    assert back.count("r") == m * m  # the residual, once per element
    assert stores["gpu_winograd_out"].count("compute_intermediate") == m * m
    for text in code.values():
        body = text[text.rindex("__global__") :]
        body = re.sub(r"\((\w+) < 0x0p\+0f[^?]*\? 0x0p\+0f[^:]*: \1\)", "relu", body)
        assert "for (" not in body and "?" not in body  # no branch, except the select of Relu
        assert "int64_t" not in body


def test_tiles_side_by_side_share_inputs() -> None:
    problem = Problem((1, 8, 16, 4), 4, 4)
    code = sources(problem, vector_elements=2, tiles_per_thread=2, threads=32)["gpu_winograd_data"]
    assert len(re.findall(r"= \*\(float2\*\)\(x_ptr", code)) == 6 * 10


@pytest.mark.sample(1)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(("m", "vector", "tiles"), [(4, 4, 1), (4, 2, 2), (2, 4, 3)])
def test_all_is_in_registers(m, vector, tiles, tmp_path) -> None:
    problem = Problem((2, 13, 12 * m - 1, 8), 12, m)
    for name, source in sources(
        problem, vector_elements=vector, tiles_per_thread=tiles, threads=128
    ).items():
        said = compile_with_nvcc(source, tmp_path)
        assert said is not None
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said, name


@pytest.mark.parametrize("name", TEMPLATES)
def test_hints_that_do_not_divide_are_refused(name) -> None:
    func = transforms(Problem((1, 12, 12, 6), 6, 4))[name]
    for values in (
        {"vector_elements": 4},
        {"tiles_per_thread": 2},
        {"threads": 0},
        {"vector_elements": 0},
    ):
        one = hint(name, **({"vector_elements": 1, "tiles_per_thread": 1, "threads": 64} | values))
        assert isinstance(by_name()[name].emit(func, one), Refusal)


def test_other_functions_are_refused() -> None:
    data, product, out = Problem((1, 8, 8, 4), 4).functions()
    assert all(isinstance(r, Refusal) for r in (prepare_data(product), prepare_out(product)))
    assert all(isinstance(r, Refusal) for r in (prepare_data(out), prepare_out(data)))
    assert not any(isinstance(r, Refusal) for r in (prepare_data(data), prepare_out(out)))
    assert len(inputs_of(out)) == 3
