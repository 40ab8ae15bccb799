"""Damaged or malicious data files are rejected with a one-line error."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.array_file import read_array_file
from tvmopt.evaluate.dataset import load_dataset, require_class_indices
from tvmopt.plain_yaml import load_yaml, read_yaml
from tvmopt.runtime.metadata import TensorSpec

SPECS = [TensorSpec("x", (1, 4), "float32")]
GOOD = np.arange(40, dtype=np.float32).reshape(10, 4)


def _npy(array=GOOD):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _huge():
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }"
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64


def _zip_of(name, content, **options):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def _compressed_by(method):
    """Set the compression method, 10 bytes after the mark of the central directory."""
    data = bytearray(_npz(x=GOOD))
    data[data.index(b"PK\x01\x02") + 10] = method
    return bytes(data)


DAMAGED = {
    "header of 10^12 rows": _huge(),
    "the same in a zip": _zip_of("x.npy", _huge()),
    "zip without arrays": _zip_of("readme.txt", b"hello"),
    "unknown compression": _compressed_by(99),
    "empty": b"",
    "cut short": _npy()[:-9],
    "cut zip": _npz(x=GOOD)[:-30],
    "text": b"1,2,3\n",
    "objects": _npy(np.array([{}], dtype=object)),
    "version": b"\x93NUMPY\x09\x00" + _npy()[8:],
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_data_is_one_line(name, tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(ConfigError, match=r"data must be a \.npz or \.npy file") as caught:
        load_dataset(path, SPECS)
    assert "\n" not in str(caught.value)


def test_mutated_archives_are_read_rightly_or_refused(tmp_path):
    path, good = tmp_path / "data.npz", _npz(x=GOOD)
    generator = random.Random(0)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(data[: generator.choice([len(data), generator.randrange(len(data))])])
        try:
            found = load_dataset(path, SPECS)
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found.arrays["x"], GOOD)


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_good_data_is_read_as_it_was(tmp_path, save, order):
    path = tmp_path / ("data.npy" if save is np.save else "data.npz")
    save(path, np.asarray(GOOD, order=order))
    np.testing.assert_array_equal(load_dataset(path, SPECS).arrays["x"], GOOD)


@pytest.mark.parametrize("save", [np.save, np.savez])
@pytest.mark.parametrize("samples", [1, 10])
def test_a_part_of_a_mapped_file_is_a_copy(tmp_path, save, samples):
    path = tmp_path / ("data.npy" if save is np.save else "data.npz")
    save(path, GOOD[:samples])
    [array] = read_array_file(path).values()
    assert not array.flags.writeable and not array.flags.owndata
    for part in ("calibrate", "evaluate", "heldout"):
        chosen = load_dataset(path, SPECS).split(part).arrays["x"]
        assert chosen.flags.writeable and chosen.flags.aligned and chosen.flags.c_contiguous


def test_a_wrong_checksum_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=GOOD)
    data = bytearray(path.read_bytes())
    data[data.index(GOOD.tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"checksum of its array 'x\.npy' is wrong"):
        load_dataset(path, SPECS)


def test_labels_outside_of_the_classes_are_refused(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=GOOD, labels=np.full(10, -1))
    with pytest.raises(ConfigError, match=r"labels must be class indices from 0, but .* holds -1"):
        require_class_indices(load_dataset(path, SPECS).labels)
    meter = AccuracyMeter("auto", has_labels=True)
    scores = [np.zeros((2, 3), np.float32)]
    with pytest.raises(ConfigError, match=r"labels must be class indices below 3, .* holds 3"):
        meter.add(scores, scores, np.array([0, 3]), 2)


def _bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("text", "words"),
    [(_bomb(9), "no aliases"), ("[" * 50_000, "at most 20 deep"), ("x" * 200_000, "characters")],
)
def test_yaml_that_explodes_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        load_yaml(text)


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_not_read_as_yaml(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b" " * 500_000)
    for path, words in (
        (tmp_path / "pipe", "regular file"), (Path("/dev/zero"), "regular file"),
        (tmp_path / "large", "at most"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            read_yaml(path)


def test_plain_yaml_is_read():
    assert load_yaml("dtypes: [float32, int8]\ntopk: 20") == {
        "dtypes": ["float32", "int8"], "topk": 20,
    }  # fmt: skip
