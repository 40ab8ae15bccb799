"""Tests of calls of compiled models: inputs, dtypes, outputs, threads, golden values."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from tvmopt.digest import sha256_file
from tvmopt.errors import AccuracyError, ArtifactError, ConfigError
from tvmopt.frontend.reference import Reference
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.metadata import GOLDEN_FILE
from tvmopt.runtime.model import read_golden


@pytest.fixture(scope="module")
def conv_reference(conv_model):
    return Reference(conv_model)


@pytest.fixture(scope="module")
def two_reference(two_input_model):
    return Reference(two_input_model)


@pytest.fixture
def x():
    return np.random.default_rng(5).standard_normal((1, 3, 8, 8), np.float32)


@pytest.fixture
def pair():
    bias = np.random.default_rng(6).standard_normal((4, 8), np.float32)
    return {"ids": np.array([0, 5, 3, 3]), "in/bias": bias}


def test_array_for_a_single_input(conv, conv_reference, x):
    [got] = conv(x)
    np.testing.assert_allclose(got, conv_reference({"x": x})[0], rtol=1e-4, atol=1e-5)
    assert got.dtype == np.float32


def test_dict_gives_the_same(conv, x):
    np.testing.assert_array_equal(conv({"x": x})[0], conv(x)[0])


def test_order_of_the_dict_does_not_matter(two, two_reference, pair):
    want = two_reference(pair)
    for inputs in (pair, dict(reversed(pair.items()))):
        for got, expected in zip(two(inputs), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_outputs_come_in_graph_order_and_by_name(two, pair):
    outputs = two(pair)
    assert [o.shape for o in outputs] == [(4, 3), (4, 8)]
    assert outputs["y"] is outputs[0]
    assert outputs["out/sum"] is outputs[1] is outputs[-1]
    assert outputs.keys() == ("y", "out/sum")
    assert list(dict(outputs)) == ["y", "out/sum"]
    assert dict(outputs)["out/sum"] is outputs[1]
    assert [name for name, _ in outputs.items()] == ["y", "out/sum"]
    assert outputs[:1] == [outputs[0]]
    with pytest.raises(KeyError, match="output must be one of y, out/sum, but got 'z'"):
        outputs["z"]


def test_outputs_are_fresh_arrays(conv, x):
    first = conv(x)[0]
    kept = first.copy()
    conv(-x)
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    np.testing.assert_array_equal(conv(x)[0], kept)


def test_inputs_are_not_kept(conv, x):
    before = conv(x)[0]
    given = x.copy()
    conv(given)
    given[:] = 0
    np.testing.assert_array_equal(conv(x)[0], before)


def test_layout_in_memory_does_not_matter(conv, x):
    want = conv(x)[0]
    for given in (
        np.asfortranarray(x),
        np.repeat(x, 2, axis=-1)[..., ::2],
        x[..., ::-1][..., ::-1],
        x.tolist(),
    ):
        np.testing.assert_array_equal(conv(given)[0], want)


def test_float64_is_cast(conv, x):
    np.testing.assert_array_equal(conv(x.astype(np.float64))[0], conv(x)[0])


def test_whole_numbers_are_cast_to_floats(conv):
    ones = np.ones((1, 3, 8, 8), np.int64)
    np.testing.assert_array_equal(conv(ones)[0], conv(ones.astype(np.float32))[0])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64])
def test_other_whole_numbers_are_cast(two, pair, dtype):
    given = {**pair, "ids": pair["ids"].astype(dtype)}
    np.testing.assert_array_equal(two(given)["y"], two(pair)["y"])


def test_bool_is_no_float(conv):
    with pytest.raises(ConfigError, match="input 'x' must hold float32 values, but got bool"):
        conv(np.ones((1, 3, 8, 8), bool))


def test_floats_are_no_whole_numbers(two, pair):
    given = {**pair, "ids": pair["ids"].astype(np.float32)}
    with pytest.raises(ConfigError, match="input 'ids' must hold int64 values, but got float32"):
        two(given)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 2**31), ("int32", -(2**31) - 1), ("uint8", -1), ("uint8", 256), ("int64", 2**63)],
)
def test_whole_numbers_are_cast_only_when_exact(dtype, value):
    from tvmopt.runtime.model import _cast

    with pytest.raises(ConfigError, match=f"must hold {dtype} values"):
        _cast(np.array([1, value]), np.dtype(dtype), "ids")
    np.testing.assert_array_equal(_cast(np.array([1, 100]), np.dtype(dtype), "ids"), [1, 100])


@pytest.mark.parametrize("values", [["a"] * 4, [None] * 4, [1j] * 4])
def test_what_is_no_number_is_refused(two, pair, values):
    with pytest.raises(ConfigError, match="input 'ids' must hold int64 values"):
        two({**pair, "ids": np.array(values)})


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 9), (192,)])
def test_wrong_shape(conv, shape):
    with pytest.raises(ConfigError) as caught:
        conv(np.zeros(shape, np.float32))
    assert f"input 'x' must have shape (1, 3, 8, 8), but got {shape}" in str(caught.value)


def test_wrong_name(conv, x):
    with pytest.raises(ConfigError, match="inputs must hold 'x', but got 'image'"):
        conv({"image": x})


def test_missing_input(two, pair):
    del pair["in/bias"]
    with pytest.raises(ConfigError, match="inputs must hold 'in/bias', but got 'ids'"):
        two(pair)


def test_extra_input(conv, x):
    with pytest.raises(ConfigError, match=r"but got also \['mask'\]"):
        conv({"x": x, "mask": x})


def test_array_for_several_inputs(two):
    with pytest.raises(ConfigError, match=r"dict by input name \(ids, in/bias\), but got ndarray"):
        two(np.zeros(4))


def test_a_refused_call_leaves_the_model_usable(conv, x):
    before = conv(x)[0]
    with pytest.raises(ConfigError):
        conv(x[0])
    np.testing.assert_array_equal(conv(x)[0], before)


def test_negative_index_counts_from_the_end(two, two_reference, pair):
    pair["ids"] = np.array([-1, -6, 0, 5])
    np.testing.assert_allclose(two(pair)["out/sum"], two_reference(pair)[1], rtol=1e-5)


@pytest.mark.parametrize("index", [6, -7, 10**6, 10**12, -(10**12), 2**63 - 1, -(2**63)])
def test_index_outside_the_table_reads_nothing(two, pair, index):
    inside = two(pair)["out/sum"]
    pair["ids"] = pair["ids"].copy()
    pair["ids"][1] = index
    outputs = two(pair)
    assert np.isnan(outputs["out/sum"][1]).all()
    assert np.isnan(outputs["y"][1]).all()
    np.testing.assert_array_equal(outputs["out/sum"][[0, 2, 3]], inside[[0, 2, 3]])


def test_threads_take_turns(two, two_reference):
    calls, workers = 50, 8
    rng = np.random.default_rng(0)
    inputs = [
        {
            "ids": rng.integers(0, 6, 4),
            "in/bias": rng.standard_normal((4, 8), np.float32),
        }
        for _ in range(workers)
    ]
    wrong, done = [], []
    barrier = threading.Barrier(workers)

    def work(number):
        want = two_reference(inputs[number])
        barrier.wait()
        for _ in range(calls):
            for got, expected in zip(two(inputs[number]), want, strict=True):
                if not np.allclose(got, expected, rtol=1e-4, atol=1e-5):
                    wrong.append(number)
        done.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert sorted(done) == list(range(workers))


def test_golden_outputs_are_reproduced(two, two_input_bundle):
    assert two.check_golden(two_input_bundle) <= two.metadata.tolerance


@pytest.mark.parametrize("error", [0.01, float("nan"), float("inf")])
def test_other_golden_outputs_are_refused(conv, conv_bundle, copied, error):
    from tvmopt.runtime.bundle import write_golden

    inputs, outputs = read_golden(conv_bundle, conv.metadata)
    outputs[0][0, 2] += error * np.abs(outputs[0]).max() + error
    _register(copied, write_golden(copied, inputs, outputs))
    with pytest.raises(AccuracyError, match=r"'y' must equal the golden output within 0\.001"):
        load(copied).check_golden(copied)


def test_golden_file_that_was_exchanged_is_refused(conv, conv_bundle, copied):
    from tvmopt.runtime.bundle import write_golden

    write_golden(copied, *read_golden(conv_bundle, conv.metadata))
    (copied / GOLDEN_FILE).write_bytes((copied / GOLDEN_FILE).read_bytes() + b"more")
    with pytest.raises(ArtifactError, match=r"golden\.npz must have sha256"):
        conv.check_golden(copied)


def _register(folder, golden):
    """Write the hash of a golden file into the metadata."""
    metadata = ModelMetadata.read(folder)
    dataclasses.replace(metadata, golden_sha256=sha256_file(golden)).write(folder)


def test_golden_file_without_an_output(conv, conv_bundle, copied):
    from tvmopt.runtime.bundle import write_golden

    inputs, _ = read_golden(conv_bundle, conv.metadata)
    _register(copied, write_golden(copied, inputs, []))
    with pytest.raises(ArtifactError, match=r"golden\.npz must hold every input and output"):
        load(copied).check_golden(copied)


def test_metadata_says_what_it_is(two):
    said = two.metadata
    assert [(s.name, s.shape, s.dtype) for s in said.inputs] == [
        ("ids", (4,), "int64"),
        ("in/bias", (4, 8), "float32"),
    ]
    assert [(s.name, s.shape) for s in said.outputs] == [("y", (4, 3)), ("out/sum", (4, 8))]
    assert (said.name, said.threads, said.digest) == ("two", 2, "d1")


def test_works_on_the_runtime_alone(conv, conv_bundle, x, tmp_path, run_python):
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, tvmopt.runtime\n"
        "model = tvmopt.runtime.load(sys.argv[1])\n"
        "np.save(sys.argv[3], model(np.load(sys.argv[2]))[0])\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('compiler' if 'libtvm_compiler' in maps else 'runtime')\n"
        "print(*sorted(m for m in sys.modules if m in ('mlflow', 'optuna', 'onnx', 'scipy')))\n"
    )
    done = run_python(
        "-c", code, str(conv_bundle), str(tmp_path / "x.npy"), str(tmp_path / "y.npy"),
        TVM_USE_RUNTIME_LIB="1", TVM_NUM_THREADS=None,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["runtime"]
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), conv(x)[0])
