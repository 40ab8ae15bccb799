"""Damaged or malicious ``model.json`` and ``MLmodel`` are rejected with a one-line error."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from tvmopt.errors import ArtifactError
from tvmopt.runtime.metadata import ModelMetadata
from tvmopt.tracking.flavor.verify import read_mlmodel

from ..fuzz.json_mutations import damaged, mutated

MUTANTS = 200
DEEP = "[" * 100_000


def _is_one_line(error: ArtifactError) -> bool:
    text = str(error)
    return len(text) < 1000 and "\n" not in text and "\x1b" not in text


@pytest.mark.parametrize("seed", range(MUTANTS))
def test_mutated_metadata(conv_bundle: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    good = (conv_bundle / "model.json").read_text()
    file = tmp_path / "model.json"
    if seed % 2:
        file.write_bytes(damaged(good, rng))
    else:
        file.write_text(json.dumps(mutated(json.loads(good), rng)))
    try:
        model = ModelMetadata.read(tmp_path)
    except ArtifactError as error:
        assert _is_one_line(error)
    else:
        assert 1 <= model.threads <= 4096
        assert 0 <= model.tolerance < float("inf")
        assert all(t.name.isprintable() for t in (*model.inputs, *model.outputs))
        assert str(model.device).isprintable()


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", DEEP, '{"a":' * 100_000, "9" * 5_000, "\x00", '{"format": 1}'],
    ids=["empty", "null", "list", "deep list", "deep", "digits", "nul", "bare"],
)
def test_texts_that_are_no_metadata(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ArtifactError, match="it is damaged") as caught:
        ModelMetadata.read(tmp_path)
    assert _is_one_line(caught.value)


def test_metadata_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ArtifactError, match="at most 10000000 bytes"):
        ModelMetadata.read(tmp_path)


FLAVOR = {
    "artifact_path": "model",
    "flavors": {
        "tvmopt": {"bundle": "bundle", "metadata_sha256": "0" * 64, "code_sha256": "1" * 64},
        "python_function": {"loader_module": "tvmopt.tracking.pyfunc"},
    },
}


@pytest.mark.parametrize("seed", range(MUTANTS))
def test_mutated_flavor(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = tmp_path / "MLmodel"
    if seed % 2:
        file.write_bytes(damaged(yaml.safe_dump(FLAVOR), rng))
    else:
        # JSON is YAML; this keeps values that safe_dump would not write.
        file.write_text(json.dumps(mutated(FLAVOR, rng)))
    try:
        found = read_mlmodel(tmp_path)
    except ArtifactError as error:
        assert _is_one_line(error)
    else:
        assert isinstance(found, dict)


@pytest.mark.parametrize(
    "text", ["", DEEP, "a: &a [*a, *a]", "!!python/object/apply:os.system [id]"]
)
def test_texts_that_are_no_flavor(tmp_path: Path, text: str) -> None:
    (tmp_path / "MLmodel").write_text(text)
    with pytest.raises(ArtifactError, match="missing or damaged") as caught:
        read_mlmodel(tmp_path)
    assert _is_one_line(caught.value)
