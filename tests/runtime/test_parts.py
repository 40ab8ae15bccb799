"""Hashes of the parts of a file, and a library that they do not fit."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from tvmopt.errors import ArtifactError
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.runtime.parts import PART_BYTES, part_hashes


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES - 5])
def test_each_part_has_its_hash(tmp_path, size) -> None:
    content = hashlib.shake_128(b"x").digest(size)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        found = part_hashes(file.fileno())
    parts = [content[at : at + PART_BYTES] for at in range(0, size, PART_BYTES)]
    assert found == tuple(hashlib.sha256(part).hexdigest() for part in parts)


def test_a_library_of_other_parts_is_not_opened(copied) -> None:
    metadata = ModelMetadata.read(copied)
    assert metadata.library_parts
    library = copied / LIBRARY_FILE
    content = library.read_bytes()
    for changed in (content[:-1] + b"x", content + b"x", content[:-1], b""):
        library.write_bytes(changed)
        with pytest.raises(ArtifactError, match=r"model\.so must have sha256"):
            load(copied)
    library.write_bytes(content)
    assert load(copied).check_golden(copied) <= metadata.tolerance


def test_models_of_older_versions_have_one_hash(copied) -> None:
    metadata = ModelMetadata.read(copied)
    dataclasses.replace(metadata, library_parts=()).write(copied)
    assert load(copied).check_golden(copied) <= metadata.tolerance
    dataclasses.replace(metadata, library_parts=(), library_sha256="0" * 64).write(copied)
    with pytest.raises(ArtifactError, match="must have sha256 0000"):
        load(copied)
