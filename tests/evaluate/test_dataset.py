"""Tests of evaluation data: file formats, dtypes, labels, batches, splits."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import Dataset, load_dataset, read_labels, require_class_indices
from tvmopt.runtime.metadata import TensorSpec

IMAGE = TensorSpec("image", (4, 2, 3), "float32")
ONE = TensorSpec("image", (1, 2, 3), "float32")
IDS, MASK = TensorSpec("ids", (2, 5), "int64"), TensorSpec("mask", (2, 5), "float32")


def _rows(count, *shape):
    return np.arange(count * int(np.prod(shape)), dtype=np.float32).reshape(count, *shape)


@pytest.fixture
def load(tmp_path):
    """Save arrays as .npz, and load them for the given inputs."""

    def save_and_load(specs, **arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return load_dataset(tmp_path / "data.npz", specs)

    return save_and_load


def test_npz_by_name(load):
    ids, mask = np.arange(30).reshape(6, 5), _rows(6, 5)
    data = load([IDS, MASK], mask=mask, ids=ids, unused=np.zeros(3))
    assert (data.samples, data.batch_size, len(data), data.stacked) == (6, 2, 3, False)
    np.testing.assert_array_equal(data.batch(1).inputs["ids"], ids[2:4])
    np.testing.assert_array_equal(data.batch(1).inputs["mask"], mask[2:4])


def test_single_input_may_have_any_name(load):
    data = load([IMAGE], whatever=_rows(8, 2, 3))
    np.testing.assert_array_equal(data.batch(0).inputs["image"], _rows(8, 2, 3)[:4])


def test_npy(tmp_path):
    np.save(tmp_path / "data.npy", _rows(8, 2, 3))
    data = load_dataset(tmp_path / "data.npy", [IMAGE])
    assert data.labels is None
    np.testing.assert_array_equal(data.batch(1).inputs["image"], _rows(8, 2, 3)[4:])


@pytest.mark.parametrize("key", ["labels", "label", "y", "targets", "target"])
@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_labels(load, key, shape):
    data = load([IMAGE], x=_rows(8, 2, 3), **{key: np.arange(8).reshape(shape)})
    np.testing.assert_array_equal(data.batch(1).labels, [4, 5, 6, 7])


def test_input_that_is_called_like_labels_is_an_input(load):
    spec = TensorSpec("target", (1, 2), "float32")
    data = load([spec], target=_rows(3, 2), labels=np.arange(3))
    np.testing.assert_array_equal(data.batch(1).inputs["target"], [[2, 3]])
    np.testing.assert_array_equal(data.labels, [0, 1, 2])


def test_samples_as_whole_inputs(load):
    data = load([IMAGE], x=_rows(3, 4, 2, 3))
    assert (data.stacked, data.samples, data.batch_size, len(data)) == (True, 3, 1, 3)
    np.testing.assert_array_equal(data.batch(2).inputs["image"], _rows(3, 4, 2, 3)[2])
    assert (data.batch(2).valid, data.batch(2).padding) == (1, 0)


def test_whole_inputs_with_a_label_a_row(load):
    data = load([IMAGE], x=_rows(3, 4, 2, 3), labels=np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(data.batch(1).labels, [4, 5, 6, 7])
    assert data.batch(1).valid == 4


def test_inputs_of_different_batch_axes_are_whole_inputs(load):
    other = TensorSpec("other", (3,), "float32")
    data = load([IDS, other], ids=np.zeros((7, 2, 5), int), other=_rows(7, 3))
    assert data.stacked
    np.testing.assert_array_equal(data.batch(1).inputs["other"], [3, 4, 5])


def test_scalar_inputs_are_whole_inputs(load):
    rate = TensorSpec("rate", (), "float32")
    data = load([rate], x=np.array([0.5, 1.5], np.float32))
    assert data.stacked
    assert data.batch(1).inputs["rate"] == 1.5


@pytest.mark.parametrize("samples", [1, 3, 4, 5, 8])
def test_last_batch_repeats_its_last_row(load, samples):
    rows = _rows(samples, 2, 3)
    data = load([IMAGE], x=rows, labels=np.arange(samples))
    batches = list(data.batches())
    assert len(batches) == len(data) == -(-samples // 4)
    last = batches[-1]
    assert {b.inputs["image"].shape for b in batches} == {(4, 2, 3)}
    assert last.valid + last.padding == 4
    assert sum(b.valid for b in batches) == samples
    np.testing.assert_array_equal(
        np.concatenate([b.inputs["image"][: b.valid] for b in batches]), rows
    )
    np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), np.arange(samples))
    for row in last.inputs["image"][last.valid :]:
        np.testing.assert_array_equal(row, rows[-1])


@pytest.mark.parametrize(
    ("spec_dtype", "given"),
    [("float32", "float64"), ("float32", "uint8"), ("int64", "int32"), ("int32", "int64")],
)
def test_dtypes_are_cast_to_the_inputs(load, spec_dtype, given):
    spec = TensorSpec("x", (1, 2), spec_dtype)
    data = load([spec], x=np.array([[1, 2], [3, 4]], given))
    assert data.batch(0).inputs["x"].dtype == np.dtype(spec_dtype)
    np.testing.assert_array_equal(data.batch(1).inputs["x"], [[3, 4]])


@pytest.mark.parametrize(
    ("spec_dtype", "given"), [("int64", "float32"), ("float32", "bool"), ("float32", "S1")]
)
def test_other_dtypes_are_refused(load, spec_dtype, given):
    spec = TensorSpec("x", (1, 2), spec_dtype)
    with pytest.raises(ConfigError, match=rf"data for input 'x' must be {spec_dtype}, but '.*npz'"):
        load([spec], x=np.zeros((3, 2), given))


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"existing \.npz or \.npy file, but there is none"):
        load_dataset(tmp_path / "none.npz", [IMAGE])


@pytest.mark.parametrize("content", [b"", b"1,2,3\n", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00"])
def test_file_that_is_no_array(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(ConfigError, match=r"must be a \.npz or \.npy file of plain arrays"):
        load_dataset(tmp_path / "data.npz", [IMAGE])


class Exploit:
    """An object that creates a file when it is unpickled."""

    path = ""

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("form", ["npz", "npy", "pickle"])
def test_nothing_is_unpickled(tmp_path, form):
    trace, path = tmp_path / "executed", tmp_path / f"data.{form}"
    bad = Exploit()
    bad.path = str(trace)
    if form == "pickle":
        path.write_bytes(pickle.dumps(bad))
    else:
        array = np.empty(1, dtype=object)
        array[0] = bad
        if form == "npz":
            np.savez(path, image=array)
        else:
            np.save(path, array, allow_pickle=True)
    with pytest.raises(ConfigError, match="plain arrays"):
        load_dataset(path, [IMAGE])
    assert not trace.exists()


def test_missing_input_is_refused_with_what_there_is(load):
    with pytest.raises(ConfigError, match=r"every input \(ids, mask\), but '.*' holds ids, other"):
        load([IDS, MASK], ids=np.zeros((6, 5), int), other=np.zeros(6))


def test_shapes_that_fit_neither_as_rows_nor_as_inputs(load):
    with pytest.raises(ConfigError) as caught:
        load([IMAGE], x=_rows(8, 2, 4))
    message = str(caught.value)
    assert "rows (image: (N, 2, 3)) or as whole inputs (image: (N, 4, 2, 3))" in message
    assert "holds image: (8, 2, 4)" in message


def test_scalar_array(load):
    with pytest.raises(ConfigError, match="must hold N samples"):
        load([IMAGE], x=np.float32(1))


@pytest.mark.parametrize(("rows", "labels"), [(8, 7), (0, 0)])
def test_numbers_of_samples_must_agree_and_be_positive(load, rows, labels):
    with pytest.raises(ConfigError, match="the same number of samples, at least 1"):
        load([IMAGE], x=_rows(rows, 2, 3), labels=np.zeros(labels, int))


def test_inputs_of_different_lengths(load):
    with pytest.raises(ConfigError, match=r"same number of samples.*holds \[4, 6\]"):
        load([IDS, MASK], ids=np.zeros((6, 5), int), mask=_rows(4, 5))


@pytest.mark.parametrize(
    "labels",
    [np.zeros(8), np.eye(8, 4, dtype=int), np.zeros(8, bool), np.array(["a"] * 8)],
    ids=["float", "one-hot", "bool", "text"],
)
def test_labels_of_any_kind_are_read_and_no_class_indices(load, labels):
    read = load([IMAGE], x=_rows(8, 2, 3), labels=labels)
    np.testing.assert_array_equal(read.labels, labels)
    np.testing.assert_array_equal(read.batch(1).labels, labels[4:])
    with pytest.raises(ConfigError, match=r"integer class indices.*metric for such labels"):
        require_class_indices(read.labels)


@pytest.mark.parametrize("labels", [np.int64(3), np.zeros(8, complex)])
def test_labels_must_be_an_array_of_numbers_or_strings(load, labels):
    with pytest.raises(ConfigError, match="labels must be numbers or strings, one a sample"):
        load([IMAGE], x=_rows(8, 2, 3), labels=labels)


def test_labels_of_a_whole_input_have_its_rows(load):
    values = np.arange(24.0).reshape(4, 6)
    single = load([TensorSpec("x", (1, 2, 3), "float32")], x=_rows(4, 1, 2, 3), labels=values)
    np.testing.assert_array_equal(single.batch(1).labels, values[1:2])
    maps = np.arange(32.0).reshape(4, 4, 2)
    several = load([IMAGE], x=_rows(4, 4, 2, 3), labels=maps)
    np.testing.assert_array_equal(several.batch(1).labels, maps[1])
    assert (single.batch(0).valid, several.batch(0).valid) == (1, 4)


def test_labels_alone_are_read(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((2, 3)), y=np.array([1, 2]), labels=np.array([3, 4]))
    assert read_labels(path, ["x"]).tolist() == [3, 4]
    assert read_labels(path, ["x", "labels"]).tolist() == [1, 2]
    assert read_labels(path, ["x", "labels", "y"]) is None
    np.save(tmp_path / "data.npy", np.zeros(3))
    assert read_labels(tmp_path / "data.npy", ["x"]) is None


def _dataset(samples):
    rows = np.arange(samples, dtype=np.float32).reshape(samples, 1)
    spec = TensorSpec("x", (1, 1), "float32")
    return Dataset((spec,), {"x": rows}, np.arange(samples), stacked=False)


@settings(deadline=None, max_examples=60)
@given(st.integers(20, 400))
def test_split_is_disjoint_covering_and_repeatable(samples):
    data = _dataset(samples)
    parts = {part: data.split(part).labels for part in ("calibrate", "evaluate", "heldout")}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(samples))
    assert abs(len(parts["heldout"]) - 0.3 * samples) <= 1
    assert abs(len(parts["calibrate"]) - 0.2 * samples) <= 1
    for part, labels in parts.items():
        again = _dataset(samples).split(part)
        np.testing.assert_array_equal(again.labels, labels)
        np.testing.assert_array_equal(again.arrays["x"][:, 0], labels)


def test_split_mixes():
    heldout = _dataset(100).split("heldout").labels
    assert heldout.min() < 30
    assert heldout.max() > 70


def test_calibration_takes_no_more_than_it_needs():
    data = _dataset(10_000)
    assert data.split("calibrate").samples == 512
    assert data.split("evaluate").samples == 7000 - 512


@pytest.mark.parametrize("samples", [2, 3, 4, 19])
def test_few_samples_calibrate_on_their_first_quarter(samples):
    data = _dataset(samples)
    calibrate, rest = data.split("calibrate").labels, data.split("evaluate").labels
    np.testing.assert_array_equal(np.concatenate([calibrate, rest]), data.labels)
    np.testing.assert_array_equal(data.split("heldout").labels, rest)
    assert len(calibrate) == max(1, samples // 4)


def test_a_single_sample_is_every_part():
    data = _dataset(1)
    for part in ("calibrate", "evaluate", "heldout"):
        chosen = data.split(part)
        np.testing.assert_array_equal(chosen.arrays["x"], data.arrays["x"])
        np.testing.assert_array_equal(chosen.labels, data.labels)
        assert dataclasses.replace(chosen, arrays=data.arrays, labels=data.labels) == data


def test_unknown_part():
    with pytest.raises(KeyError):
        _dataset(30).split("train")
