"""The decoder step of ``benchmarks.cuda_decoder``: its numbers on a CPU, its kernels on a GPU."""

from __future__ import annotations

import collections
import functools
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import tvm
from tvm import relax

from benchmarks import cuda_decoder
from benchmarks.decoder_model import decoder_step
from benchmarks.decoder_sizes import DecoderSizes
from benchmarks.decoder_weights import (
    dense_weight,
    inputs_of,
    packed_weight,
    read_constants,
    reference,
    write_constants,
)
from tests.emulator import cuda as emulate
from tests.kernels.cuda.serial import H200
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

SMALL = DecoderSizes(2, 64, 4, 2, 16, 96, 9)
TINY = DecoderSizes(1, 64, 4, 2, 64, 96, 31)
SIZES = DecoderSizes(1, 3072, 24, 8, 128, 3072, 1024)
VERSIONS = ("float16", "int4")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_reference_equals_onnx_runtime(version: str) -> None:
    model = cuda_decoder.step(SMALL, version, 32)
    inputs = inputs_of(SMALL)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(["y"], inputs)[0].reshape(-1).astype("float32")
    want = reference(SMALL, inputs, 32)
    np.testing.assert_allclose(got, want, atol=4e-3 * np.abs(want).max())


@pytest.mark.sample(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_cpu_computes_the_step(version: str) -> None:
    inputs = inputs_of(SMALL)
    prepared = prepare(cuda_decoder.step(SMALL, version, 32), {})
    converted = convert_module(import_onnx(prepared.model))
    given = [inputs[value.name] for value in prepared.model.graph.input]
    got = compile_for_check(converted.mod, resolve_target("host", 1))(given)
    want = reference(SMALL, inputs, 32)
    np.testing.assert_allclose(got[0].reshape(-1), want, atol=1e-2 * np.abs(want).max())
    np.testing.assert_array_equal(got[1][:, :, :-1], inputs["past_k.0"])


def test_both_versions_have_the_same_weights() -> None:
    packed = packed_weight("0.q", 64, 24, 32)
    values = np.stack([packed["b"] & 15, packed["b"] >> 4], -1).reshape(24, 2, 32)
    weight = (values - 8.0) * packed["s"][..., None].astype("float32")
    dense = dense_weight("0.q", 64, 24, 32)
    np.testing.assert_array_equal(weight.reshape(24, 64).T, dense.astype("float32"))


def test_arrays_travel_compressed(tmp_path) -> None:
    arrays = [dense_weight("0.up", 512, 512, 32), np.arange(3, dtype="uint32")]
    write_constants(tmp_path / "a.npz", arrays)
    assert (tmp_path / "a.npz").stat().st_size < arrays[0].nbytes / 20
    for stored, array in zip(read_constants(tmp_path / "a.npz"), arrays, strict=True):
        np.testing.assert_array_equal(stored, array)
        assert stored.dtype == array.dtype


@functools.cache
def _scheduled(version: str) -> tuple[tvm.IRModule, dict[str, str]]:
    return cuda_decoder.scheduled(cuda_decoder.step(SIZES, version, 128))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        # Gate and up together. Q, K and V as well as gate and up compute RMSNorm.
        ("int4", {"gpu_int4": 4}),
        # Q, K and V together; output; gate; up; down. RMSNorm twice.
        ("float16", {"hopper_gemm": 5, "gpu_row_reduction": 2}),
    ],
)
def test_each_kernel_of_a_hopper_step_is_of_its_family(
    version: str, expected: dict[str, int]
) -> None:
    mod, sources = _scheduled(version)
    calls = cuda_decoder.kernel_calls(mod)
    families = [sources[call["kernel"]].removeprefix("default:") for call in calls]
    assert collections.Counter(families) == {
        **expected,
        "mma_attention": 1,  # few queries over many keys
        # Rotary embedding of Q and of K with both caches; and once a step two table rows.
        "horizontal fusion": 2,
    }


def _plain(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs by their names in Relax."""
    return {name.replace(".", "_"): array for name, array in inputs.items()}


def _emulated(mod: tvm.IRModule, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of ``main``, each of its kernels emulated."""
    values: dict[relax.Expr, object] = {p: inputs[p.name] for p in mod["main"].params}

    def value(expr: relax.Expr) -> object:
        return values[expr] if isinstance(expr, relax.Var) else expr.value.numpy()

    def shaped(ty: relax.TensorType) -> np.ndarray:
        return np.zeros([int(e) for e in ty.shape], str(ty.dtype))

    def computed(made: relax.Expr) -> object:
        if isinstance(made, relax.Tuple):
            return [value(field) for field in made.fields]
        if isinstance(made, relax.TupleGetItem):
            return value(made.tuple_value)[made.index]
        if made.op.name == "relax.reshape":
            return value(made.args[0]).reshape([int(e) for e in made.ty.shape])
        assert made.op.name == "relax.call_tir"
        several = isinstance(made.ty, relax.TupleType)
        outputs = [shaped(ty) for ty in (made.ty.fields if several else [made.ty])]
        arguments = [value(argument) for argument in made.args[1].fields]
        got = emulate.run(mod[made.args[0]], arguments, outputs, H200)
        return got if several else got[0]

    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            values[binding.var] = computed(binding.value)
    return value(mod["main"].body.body)


@pytest.mark.parametrize(
    "of_the_end",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["position", "distance of the position from the end"],
)
def test_an_emulated_gpu_computes_the_step(of_the_end: bool) -> None:
    mod, sources = cuda_decoder.scheduled(cuda_decoder.step(TINY, "int4", 32))
    assert list(sources.values()).count("horizontal fusion") == 2
    inputs = inputs_of(TINY)
    want = reference(TINY, inputs, 32)
    position = inputs["position"] - of_the_end * (TINY.past + 1)
    y, k, v = _emulated(mod, _plain(inputs | {"position": position}))
    np.testing.assert_allclose(y.reshape(-1), want, atol=1e-2 * np.abs(want).max())
    np.testing.assert_array_equal(k[:, :, :-1], inputs["past_k.0"])
    np.testing.assert_array_equal(v[:, :, :-1], inputs["past_v.0"])


def test_constants_become_inputs() -> None:
    mod, _ = _scheduled("int4")
    lifted, values = cuda_decoder.without_constants(mod)
    before, after = mod["main"].params, lifted["main"].params
    assert len(after) == len(before) + len(values)
    assert int(lifted["main"].attrs["num_input"]) == len(after)
    for var, value in zip(after[len(before) :], values, strict=True):
        assert tuple(map(int, var.ty.shape)) == value.shape and str(var.ty.dtype) == value.dtype
    assert sum(value.nbytes for value in values if value.dtype == np.uint32) == sum(
        k * n // 2 for k, n in SIZES.linears().values()
    )
    assert isinstance(lifted["main"], relax.Function)


@pytest.mark.slow  # builds a whole step with nvcc
def test_kernels_of_a_library_are_found_by_name(tmp_path: Path) -> None:
    """On a CPU; the module of a GPU's library has the same structure."""
    target = resolve_target("host", 1)
    prepared = prepare(cuda_decoder.step(SMALL, "int4", 32), {})
    lowered = lower(convert_module(import_onnx(prepared.model)).mod, target.to_tvm())
    build_library(lowered, target, tmp_path / "step.so", native=False)
    kernel_of = cuda_decoder.kernels_of(tmp_path / "step.so")
    call = next(c for c in cuda_decoder.kernel_calls(lowered) if len(c["arguments"]) == 2)
    given = [tvm.runtime.tensor(np.ones(shape, dtype)) for shape, dtype in call["arguments"]]
    given[-1].copyfrom(np.full(call["arguments"][-1][0], 77, call["arguments"][-1][1]))
    kernel_of(call["kernel"])(*given)
    assert not (given[-1].numpy() == 77).any()


def test_the_model_takes_other_bits() -> None:
    def weights(name: str, depth: int, rows: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(depth + rows)
        values = rng.integers(0, 256, (rows, depth // 16, 16), dtype="uint8")
        return {"b": values, "s": np.full((rows, depth // 16), 2.0**-11, "float16")}

    model = decoder_step(SMALL, weights, bits=8)
    inputs = inputs_of(SMALL)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(["y"], inputs)[0]
    prepared = prepare(model, {})
    given = [inputs[value.name] for value in prepared.model.graph.input]
    converted = convert_module(import_onnx(prepared.model))
    got = compile_for_check(converted.mod, resolve_target("host", 1))(given)[0]
    np.testing.assert_allclose(got, want, atol=1e-2 * np.abs(want).max())
