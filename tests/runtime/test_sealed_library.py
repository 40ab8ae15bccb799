"""The library that was hashed is the one that is opened, whatever happens to its file."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tvmopt.errors import ArtifactError
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.checks import sealed_copy
from tvmopt.runtime.library import library_path, open_library
from tvmopt.runtime.metadata import LIBRARY_FILE


def _runs(file, metadata) -> bool:
    """Whether the library in ``file`` is of the model with one output that the metadata says."""
    executor = open_library(library_path(file), threads=1)
    inputs = [executor.tensor(np.ones(spec.shape, spec.dtype)) for spec in metadata.inputs]
    [output] = executor.bind("main", inputs)()
    return output.shape == metadata.outputs[0].shape and bool(np.isfinite(output).all())


def test_library_exchanged_after_the_check_is_not_opened(conv_bundle, two_input_bundle, tmp_path):
    bundle = Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
    metadata = ModelMetadata.read(bundle)
    with sealed_copy(bundle / LIBRARY_FILE, metadata.library_sha256) as file:
        other = tmp_path / "other.so"
        shutil.copyfile(two_input_bundle / LIBRARY_FILE, other)
        other.replace(bundle / LIBRARY_FILE)
        assert _runs(file, metadata)
    with pytest.raises(ArtifactError, match="must have sha256"):
        load(bundle)


def test_library_overwritten_after_the_check_is_not_opened(conv_bundle, two_input_bundle, tmp_path):
    """The file keeps its inode, as when an attacker writes to the artifact store in place."""
    bundle = Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
    metadata = ModelMetadata.read(bundle)
    with sealed_copy(bundle / LIBRARY_FILE, metadata.library_sha256) as file:
        (bundle / LIBRARY_FILE).write_bytes((two_input_bundle / LIBRARY_FILE).read_bytes())
        assert hashlib.file_digest(file, "sha256").hexdigest() == metadata.library_sha256
        with pytest.raises(OSError, match="not permitted"):
            os.write(file.fileno(), b"x")
        assert _runs(file, metadata)


def test_libraries_open_without_a_temporary_folder(conv_bundle, monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", None)
    assert load(conv_bundle).check_golden(conv_bundle) <= 1e-3


def test_two_libraries_in_a_row_are_not_taken_for_one(conv_bundle, two_input_bundle):
    first, second = load(conv_bundle), load(two_input_bundle)
    assert first.check_golden(conv_bundle) <= first.metadata.tolerance
    assert second.check_golden(two_input_bundle) <= second.metadata.tolerance
